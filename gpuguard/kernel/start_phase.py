"""Whether a container is still being started: its first process is the runtime's own and has run no program yet.

runc, crun and youki fork that process, put it into the container's control group, write the device rules, run the
hooks, and only then, for `create` not before `start`, execute the container's program in it. The kernel marks a process
that was forked and has executed nothing since (PF_FORKNOEXEC, include/linux/sched.h; /proc/PID/stat, proc(5)).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

# A name can be chosen by anybody, the mark cannot be had back. The name is asked for as well since there are programs
# without the mark's end: what CRIU has restored, and daemons that fork. runc: libcontainer/nsenter/nsexec.c;
# youki: container_{intermediate,init}_process.rs; crun keeps the name that it has.
_NAMES = ("runc:[", "youki:[", "crun", "memfd:crun_clon")
# Before Linux 6.14 a crun that runs from a copy of itself in memory is named after a descriptor's number.
_COPY = "/memfd:crun_cloned"
_FORKED_AND_NO_MORE = 0x40
# A container that starts is a few processes: the runtime's and those of a hook. In a sub-group by crun, and by systemd.
_MOST_PROCESSES = 64
_MOST_GROUPS = 64
_MOST_BYTES = 4096


class _Unclear(Exception):  # noqa: N818 - an answer, not an error
    """It cannot be told."""


@dataclass(frozen=True)
class _Member:
    """A process. `started` is in clock ticks since boot: several can have the same."""

    started: int
    pid: int
    name: str
    forked_only: bool


class StartPhase:
    """Looks at the processes of control groups in a hierarchy, through a /proc that has their numbers."""

    def __init__(self, hierarchy: Path, proc: Path) -> None:
        self._hierarchy = str(hierarchy).rstrip("/")
        self._proc = proc

    def starting(self, control_group: str, first: Optional[int] = None) -> Optional[bool]:
        """Whether the container in a control group has not begun its own program; None where that cannot be told.

        Its first process decides: `first`, where its runtime has noted that, else the oldest of the group and of those
        directly below: one that `exec` puts there is younger. A container can have the first one leave the group, and
        put another there that has executed nothing. A group without processes is not starting.
        """
        try:
            if first is not None:
                return self._has_not_begun(self._member(first))
            members = [found for group in self._groups(control_group) for found in self._members(group)]
        except _Unclear:
            return None
        except (FileNotFoundError, ProcessLookupError):
            return False
        if not members or len(members) > _MOST_PROCESSES:
            return False
        return self._has_not_begun(min(members, key=lambda member: (member.started, member.pid)))

    def _groups(self, control_group: str) -> Iterator[str]:
        top = self._hierarchy + control_group
        yield top
        try:
            with os.scandir(top) as entries:
                below = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            raise _Unclear from error
        yield from below[:_MOST_GROUPS]

    def _members(self, group: str) -> Iterator[_Member]:
        """Yield the processes of one group, but for those that have just ended. Raises _Unclear."""
        try:
            pids = _read(f"{group}/cgroup.procs").split()
        except OSError as error:
            raise _Unclear from error
        for pid in map(int, pids[: _MOST_PROCESSES + 1]):
            if pid == 0:  # in no pid namespace that this one knows
                raise _Unclear
            with suppress(FileNotFoundError, ProcessLookupError):
                yield self._member(pid)

    def _member(self, pid: int) -> _Member:
        try:
            text = _read(f"{self._proc}/{pid}/stat").decode("ascii", "replace")
            # The name may hold anything, parentheses and spaces too.
            before, _, after = text.rpartition(")")
            fields = after.split()
            return _Member(int(fields[19]), pid, before.partition("(")[2], bool(int(fields[6]) & _FORKED_AND_NO_MORE))
        except (FileNotFoundError, ProcessLookupError):
            raise
        except (OSError, ValueError, IndexError) as error:
            raise _Unclear from error

    def _has_not_begun(self, member: _Member) -> bool:
        return member.forked_only and self._of_a_runtime(member)

    def _of_a_runtime(self, member: _Member) -> bool:
        if member.name.startswith(_NAMES):
            return True
        try:
            return str((self._proc / str(member.pid) / "exe").readlink()).startswith(_COPY)
        except OSError:
            return False


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    try:
        return os.read(descriptor, _MOST_BYTES)
    finally:
        os.close(descriptor)
