"""Processor time for real-time processes of a node, which a kernel with RT_GROUP_SCHED gives by control group.

There a process gets SCHED_RR only in a group of the cpu hierarchy (cgroup v1) that has some, and all groups above it
too: Documentation/scheduler/sched-rt-group.rst.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from tests.lab.cgroups import Hierarchy, membership
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.poll import until

_FILE = "cpu.rt_runtime_us"
_PATIENCE = 10.0  # seconds
_MOUNTS = Path("/sys/fs/cgroup")
SHARE = 100_000
"""Microseconds of each second: of the 950,000 that there are, for several nodes at a time."""


@contextmanager
def realtime(node: Node, microseconds: int = SHARE) -> Iterator[None]:
    """Let programs that are started in the node meanwhile take a real-time class, as long as they end in the block.

    Where no hierarchy has that file they may anyway. Raises LabError when there is no time left to give.
    """
    cpu = next((one for one in node.hierarchies if "cpu" in one.controllers.split(",")), None)
    with ExitStack() as stack:
        for group in _path(node, cpu) if cpu is not None else ():
            file = group / _FILE
            if not file.exists():  # the root of the hierarchy, or a kernel without RT_GROUP_SCHED
                continue
            before = int(file.read_text(encoding="ascii"))
            if before < microseconds:
                _write(file, microseconds)
                stack.callback(_give_back, file, before)
        yield


def _path(node: Node, cpu: Hierarchy) -> list[Path]:
    """Return the groups from the top to the one that the node's programs start in."""
    mounted = _MOUNTS / cpu.mount_name
    beside = membership(Path(f"/proc/{node.init}/cgroup").read_text(encoding="utf-8"))[cpu.controllers]
    parts = PurePosixPath(beside).parts[1:]
    return [mounted.joinpath(*parts[: end + 1]) for end in range(len(parts))]


def _give_back(file: Path, microseconds: int) -> None:
    """Write what was there before; a real-time process that was killed keeps it for a moment."""
    until(lambda: _taken_back(file, microseconds), _PATIENCE, f"the end of the real-time processes of {file.parent}")


def _taken_back(file: Path, microseconds: int) -> bool:
    try:
        file.write_text(str(microseconds), encoding="ascii")
    except FileNotFoundError:  # the node has ended
        return True
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def _write(file: Path, microseconds: int) -> None:
    try:
        file.write_text(str(microseconds), encoding="ascii")
    except OSError as error:
        raise LabError(f"{file}: cannot have {microseconds} µs: {error.strerror}") from error
