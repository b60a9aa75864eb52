"""What the sentinel is told to watch, and what it tells of each foreign write."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from gpuguard.model.process import Process
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet

LONGEST_REWRITE = 0.05
"""Seconds that a rewrite of a list is left to systemd; it takes a tenth of a millisecond when it has a processor."""


@dataclass(frozen=True)
class Watched:
    """A scope to watch, and what to write back there at once when it is found missing.

    `undeclared`: entitled and not known to be declared. `declared`: entitled and declared: systemd writes these
    itself, so that one is looked for again a little later. `heal` is False where gpuguard must only look: in observe
    mode, and in a pause. `growing`: what appears in its list is still learnt, and must be seen before it can be lost.
    """

    control_group: str
    inode: int
    undeclared: frozenset[Rule] = frozenset()
    declared: frozenset[Rule] = frozenset()
    heal: bool = True
    growing: bool = False


@dataclass(frozen=True)
class Write:
    """One or several writes to a scope's device list by one process (cgroup v1).

    Times are seconds of CLOCK_MONOTONIC; `at` is when it was noticed. `denied`: devices.deny was written, not only
    devices.allow. `writer` is None when it was gone or cannot be seen; `pid` is its number then, too, 0 where nobody is
    known. `requester` is whom systemd did it for, else the writer itself, and that process's ancestors, the nearest
    first, as far as was found. `before` and `after` are the lists before it and right after it, None where not known; a
    look between systemd's deny and its allows shows an `after` that is torn. `restored` was written back; `whole_at` is
    when all that is entitled was in force again, None when nothing was lost or it is not back. `refused`: the
    back-off forbids more.
    """

    control_group: str
    inode: int
    at: float
    denied: bool
    writer: Optional[Process] = None
    requester: tuple[Process, ...] = ()
    before: Optional[RuleSet] = None
    after: Optional[RuleSet] = None
    restored: frozenset[Rule] = frozenset()
    whole_at: Optional[float] = None
    refused: bool = False
    error: Optional[str] = None
    pid: int = 0

    @property
    def lasted(self) -> Optional[float]:
        """For how many seconds something was lost, None when nothing was or it is not back."""
        return None if self.whole_at is None else max(0.0, self.whole_at - self.at)


@dataclass(frozen=True)
class ProgramsChanged:
    """Somebody is attaching or detaching BPF programs (cgroup v2): a hint, the call itself is still to come.

    `at` is in seconds of CLOCK_MONOTONIC; `name` is the caller's, as the kernel has it; `writer` is None where it
    cannot be told.
    """

    at: float
    name: str
    writer: Optional[Process] = None
    requester: tuple[Process, ...] = ()


# In place of a scheduling class: there is no sentinel.
NOT_RUNNING = "none"


@dataclass(frozen=True)
class Standing:
    """How the sentinel runs: its scheduling class ("rr", "nice" or "normal"), and why it is no better."""

    scheduling: str
    reason: Optional[str] = None
