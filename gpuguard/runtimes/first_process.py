"""A container's first process: whether it still runs, in which control group, and since when."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from gpuguard.errors import RuntimeFileError
from gpuguard.model.membership import Membership, memberships
from gpuguard.model.pathname import within

_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat are counted from 1, and follow the name's closing parenthesis from the third on.
_STARTED = 22 - 3


class FirstProcesses:
    """The processes that runtimes name, as /proc shows them."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc

    def started(self, pid: int) -> Optional[int]:
        """Return when it started, in ticks since the boot, None when there is no such process. Raises RuntimeFileError.

        A process of that number that has ended and was not waited for is none.
        """
        text = self._read(pid, "stat")
        if text is None:
            return None
        fields = text.rpartition(")")[2].split()
        if len(fields) <= _STARTED or not fields[_STARTED].isdigit():
            raise RuntimeFileError(f"{self._proc}/{pid}/stat: not what the kernel writes")
        return None if fields[0] in {"Z", "X"} else int(fields[_STARTED])

    def is_in(self, pid: int, control_group: str) -> bool:
        """Whether it is in a control group or below. Raises RuntimeFileError."""
        return any(within(group, control_group) for _, group in self._groups(pid))

    def gated_elsewhere(self, pid: int, control_group: str) -> Optional[str]:
        """Return the v1 control group whose device rules count for it, None for its own or one below, and without v1.

        Seen with runc 1.1 and systemd 252 and 257: the first container in a new slice within a slice stays in the
        slice's group of the device hierarchy. Raises RuntimeFileError.
        """
        for controllers, group in self._groups(pid):
            if "devices" in controllers:
                return None if within(group, control_group) else group
        return None

    def _groups(self, pid: int) -> Iterator[Membership]:
        return memberships(self._read(pid, "cgroup") or "")

    def _read(self, pid: int, name: str) -> Optional[str]:
        path = self._proc / str(pid) / name
        try:
            # Not as text: a carriage return, which may be in a group's name, would end a line.
            return path.read_bytes().decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError as error:  # ENAMETOOLONG is the process's own doing: it may be in a group of any depth
            raise RuntimeFileError(f"{path}: cannot be read: {error.strerror}") from error


def seconds_since_epoch(ticks: int) -> float:
    """Return a moment of this boot as seconds since the epoch, by what the clock says now."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / _TICKS
