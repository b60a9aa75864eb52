"""Starting the process that keeps a node, and ending it; removing nodes that have lost theirs."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.keeper import GRACE, PRIVATE
from tests.lab.record import Record, exclusive, load, load_all

ROOT = Path(__file__).resolve().parents[2]
"""The source tree, which a node shows at the same path as the machine does."""

BOOT = 60.0  # seconds; half a second is usual, several when the machine is busy


def start(name: str, mode: str, rootfs: str, *, keep: bool) -> subprocess.Popen[bytes]:
    """Start the keeper of a new node; see tests/lab/keeper.py."""
    return subprocess.Popen(
        [*PRIVATE, sys.executable, "-m", "tests.lab.keeper", name, mode, rootfs, "term" if keep else "stdin"],
        cwd=ROOT,
        stdin=subprocess.DEVNULL if keep else subprocess.PIPE,
        stdout=subprocess.DEVNULL,  # not this process's, which someone may read to its end
        stderr=subprocess.PIPE,
        start_new_session=True,
    )


def await_record(name: str, keeper: subprocess.Popen[bytes]) -> Record:
    """Wait until the keeper has made its record and return it. Raises LabError, with its reason, when it does not."""
    deadline = time.monotonic() + BOOT
    while time.monotonic() < deadline:
        record = load(name)
        if record is not None and record.keeper.pid == keeper.pid:
            return record
        if keeper.poll() is not None:
            end(keeper)  # says why
        time.sleep(0.02)
    raise LabError(f"the keeper of node {name} has not begun within {BOOT:.0f} s")


def end(keeper: subprocess.Popen[bytes]) -> None:
    """End a keeper, and with it its node. Raises LabError with what it said when it failed."""
    if keeper.stdin is not None:
        keeper.stdin.close()
    else:
        keeper.terminate()
    try:
        status = keeper.wait(2 * GRACE)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"the node's keeper (process {keeper.pid}) does not end") from error
    with keeper.stderr or nullcontext() as stream:
        complaint = stream.read().decode(errors="replace").strip() if stream else ""
    if status:
        raise LabError(f"the node's keeper ended with status {status}: {complaint}")


def clear(name: str) -> None:
    """Remove what is left of a node that has no keeper. Raises LabError when that fails."""
    tool(["tests.lab.keeper", "--clear", name], PRIVATE)


def tool(module: Sequence[str], spaces: Sequence[str] = ()) -> None:
    """Run one of the lab's own modules in a process of its own. Raises LabError with what it said when it failed."""
    done = subprocess.run(
        [*spaces, sys.executable, "-m", *module], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"{' '.join(module)}: {done.stderr.strip()}")


def reap() -> list[str]:
    """Remove all nodes whose keeper was killed and return their names. Raises LabError when that fails."""
    with exclusive():
        dead = [record.name for record in load_all() if not record.keeper.alive()]
        for name in dead:
            clear(name)
    return dead
