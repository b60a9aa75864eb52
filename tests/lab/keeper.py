"""The process that starts a node, watches over it and removes it: `python -m tests.lab.keeper NAME MODE ROOTFS HOLD`.

It runs in a mount namespace of its own, so that nothing it mounts shows on the machine, and in a session of its own,
so that Ctrl-C does not reach it. HOLD says when the node ends: "stdin" when its standard input closes, which is when
the process that wanted the node ends, however it ends; "term" not before SIGTERM. It ends with the node in any case.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests.lab import cgroups
from tests.lab.errors import LabError
from tests.lab.process import identify
from tests.lab.record import Record, load

GRACE = 20.0  # seconds for killed processes to be gone
PRIVATE = ["unshare", "--mount", "--propagation", "slave", "--"]


def keep(name: str, mode: str, rootfs: str, hold: str) -> None:
    """Boot the node and return when it is gone. Raises LabError when it cannot be started or removed."""
    keeper = identify(os.getpid())
    assert keeper is not None
    own = cgroups.membership(Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    record = Record(name, mode, keeper, tuple(cgroups.plan(name, mode, own)))
    record.save()
    try:
        node = _start(record, rootfs)
        try:
            _wait(node, hold)
            if node.poll() is not None:
                raise LabError(f"node {name} has ended by itself; its console ends:\n{record.console_tail()}")
        finally:
            _kill(record, node)
    finally:
        clear(record)


def clear(record: Record) -> None:
    """Kill what is left of a node and remove its groups and files; only in a private mount namespace."""
    deadline = time.monotonic() + GRACE
    for directory, hierarchy in _hierarchies(record):
        cgroups.remove(directory / hierarchy.directory.lstrip("/"), deadline)
    subprocess.run(["umount", "--recursive", "--lazy", str(record.mounts)], check=False, capture_output=True)
    record.forget()


def _hierarchies(record: Record) -> list[tuple[Path, cgroups.Hierarchy]]:
    """Where each hierarchy is mounted, for this process and its children alone."""
    places = []
    for hierarchy in record.hierarchies:
        place = record.mounts / "cgroup" / hierarchy.mount_name
        if not os.path.ismount(place):
            if not os.path.ismount(record.mounts):
                subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "lab", str(record.mounts)], check=True)
            hierarchy.mount(place)
        places.append((place, hierarchy))
    return places


def _start(record: Record, rootfs: str) -> subprocess.Popen[bytes]:
    groups = [cgroups.create(hierarchy, place) for place, hierarchy in _hierarchies(record)]
    stage = [sys.executable, "-m", "tests.lab.stage", record.name, rootfs]
    spaces = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--cgroup", "--fork", "--kill-child", "--"]
    with record.console.open("wb") as console:
        return subprocess.Popen(
            cgroups.entering(groups, [*spaces, *stage]),  # first: they become the root of the cgroup namespace
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
        )


def _wait(node: subprocess.Popen[bytes], hold: str) -> None:
    ended = os.pidfd_open(node.pid)
    try:
        select.select([ended, *([sys.stdin] if hold == "stdin" else [])], [], [])
    finally:
        os.close(ended)


def _kill(record: Record, node: subprocess.Popen[bytes]) -> None:
    """End PID 1, and all with it; its parent, which is `node`, follows when it has taken note of that."""
    init = record.init()
    if init is None:
        node.kill()
    else:
        with suppress(ProcessLookupError):
            os.kill(init.pid, signal.SIGKILL)
    node.wait(GRACE)


def _terminate(_signal: int, _frame: object) -> None:
    raise SystemExit(0)


def main() -> None:
    """Run as the module's docstring says; with "--clear NAME" only remove what is left of a node without a keeper."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        if sys.argv[1] == "--clear":
            record = load(sys.argv[2])
            if record is not None:
                clear(record)
        else:
            keep(*sys.argv[1:])
    except (LabError, OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"{error}") from error


if __name__ == "__main__":
    main()
