"""A process that cannot be mistaken for a later one with the same number."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional


@dataclass(frozen=True)
class Process:
    """A process id and the time it started, in clock ticks since boot (proc(5), field 22 of stat)."""

    pid: int
    started: int

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return identify(self.pid) == self


def identify(pid: int) -> Optional[Process]:
    """Return the running process `pid`, or None when there is none (or only a zombie)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold anything
    if fields[0] in "ZX":
        return None
    return Process(pid, int(fields[19]))


def children(pid: int) -> list[int]:
    """Return the children of `pid`'s main thread; empty when it is gone."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except (FileNotFoundError, ProcessLookupError):
        return []
