"""A node's own directory in each cgroup hierarchy, whatever the machine has mounted where."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError

SYSTEMD = "name=systemd"

# systemd moves its PID 1 up and removes the group when the last unit that needs a controller goes: then the one above.
_ENTER = (
    'while [ "$1" != -- ]; do { echo 0 >"$1/cgroup.procs"; } 2>/dev/null || echo 0 >"${1%/*}/cgroup.procs" || exit 1; '
    'shift; done; shift; exec "$@"'
)


@dataclass(frozen=True)
class Hierarchy:
    """One hierarchy and the node's directory in it.

    `controllers` is what /proc/PID/cgroup calls it: "devices", "cpu,cpuacct", "name=systemd", "" for the unified one.
    """

    controllers: str
    directory: str

    @property
    def mount_name(self) -> str:
        """Its usual name below /sys/fs/cgroup."""
        return {SYSTEMD: "systemd", "": "unified"}.get(self.controllers, self.controllers)

    def mount(self, at: Path) -> None:
        """Mount the whole hierarchy (or what the cgroup namespace shows of it); creates `at`. Raises LabError."""
        at.mkdir(parents=True, exist_ok=True)
        if self.controllers:
            options = f"none,{SYSTEMD}" if self.controllers == SYSTEMD else self.controllers
            argv = ["mount", "-t", "cgroup", "-o", options, "cgroup", str(at)]
        else:
            argv = ["mount", "-t", "cgroup2", "cgroup2", str(at)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"cannot mount the cgroup hierarchy {self.mount_name!r}: {done.stderr.strip()}")


def membership(process: str) -> dict[str, str]:
    """Return the path in each hierarchy, by its controllers, from the text of a /proc/PID/cgroup."""
    return {controllers: path for _, controllers, path in (line.split(":", 2) for line in process.splitlines())}


def plan(name: str, mode: str, own: dict[str, str]) -> list[Hierarchy]:
    """Say which hierarchies a node needs; `own` is the membership of who boots it.

    The node lives below its starter's own groups, so that it keeps to the limits it was started with. On v1 it
    gets all hierarchies of the machine and, on a machine that is unified, a devices and a systemd hierarchy anew.
    """
    wanted = {"": own.get("", "/")}
    if mode == "v1":
        wanted["devices"] = own.get("devices", "/")
        wanted[SYSTEMD] = own.get(SYSTEMD, "/")
        wanted.update({known: path for known, path in own.items() if not known.startswith("name=")})
    return [Hierarchy(controllers, f"{path.rstrip('/')}/lab-{name}") for controllers, path in wanted.items()]


def create(hierarchy: Hierarchy, mounted: Path) -> Path:
    """Make the node's directory, ready for processes, and return it."""
    directory = mounted / hierarchy.directory.lstrip("/")
    directory.mkdir()
    if "cpuset" in hierarchy.controllers.split(","):  # v1: empty at first, and no process can enter an empty one
        for file in ("cpuset.cpus", "cpuset.mems"):
            (directory / file).write_text((directory.parent / file).read_text(encoding="ascii"), encoding="ascii")
    return directory


def entering(groups: Iterable[Path], argv: Sequence[str]) -> list[str]:
    """Return a command that enters these groups and then becomes `argv`."""
    return ["sh", "-c", _ENTER, "sh", *map(str, groups), "--", *argv]


def remove(directory: Path, deadline: float) -> None:
    """Kill every process in `directory` and below, and remove it all.

    Raises LabError when something is left at `deadline` (time.monotonic()).
    """
    while directory.exists():
        for path, _, _ in os.walk(directory, topdown=False):
            _kill(Path(path) / "cgroup.procs")
            try:
                Path(path).rmdir()
            except FileNotFoundError:
                pass
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
        if directory.exists():
            if time.monotonic() > deadline:
                raise LabError(f"cannot empty the control group {directory}: processes in it do not die")
            time.sleep(0.02)


def _kill(procs: Path) -> None:
    with suppress(FileNotFoundError):
        for pid in procs.read_text(encoding="ascii").split():
            if pid != "0":  # "0": a process of a pid namespace that this one cannot see
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
