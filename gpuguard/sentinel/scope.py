"""One scope that is watched, and what happened to it that is not told yet. All times are CLOCK_MONOTONIC's."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from gpuguard.kernel.device_files import GLANCE, DeviceFiles
from gpuguard.model.backoff import Backoff
from gpuguard.model.process import Process
from gpuguard.model.rule import Rule
from gpuguard.model.write import Watched, Write
from gpuguard.sentinel.lists import Missing, known, missing, parse, same

# Events of one scope in a second: a rewrite by systemd is one of a deny and some 12 of allows.
_MOST_DENIES = 500
_MOST_EVENTS = 5000


@dataclass
class Happening:
    """A Write in the making. `pid` is the writer's, 0 where nobody is known to have written."""

    scope: Scope
    at: float
    denied: bool
    pid: int = 0
    writer: Optional[Process] = None
    requester: tuple[Process, ...] = ()
    before: Optional[bytes] = None
    after: Optional[bytes] = None
    restored: frozenset[Rule] = frozenset()
    whole_at: Optional[float] = None
    refused: bool = False
    error: Optional[str] = None
    counted: bool = False
    """As a repair, for the back-off."""

    def written(self) -> Write:
        """Return it for the daemon."""
        watched = self.scope.watched
        return Write(
            control_group=watched.control_group,
            inode=watched.inode,
            at=self.at,
            denied=self.denied,
            writer=self.writer,
            requester=self.requester,
            before=known(self.before),
            after=known(self.after),
            restored=self.restored,
            whole_at=self.whole_at,
            refused=self.refused,
            error=self.error,
            pid=self.pid,
        )


@dataclass
class Scope:
    """What is held of a scope.

    `seen` is its list at the last look. `revoked` was taken away on purpose: it is not given back until the daemon has
    said so, or somebody has written it again. `open` waits for a second look.
    """

    watched: Watched
    files: DeviceFiles
    backoff: Backoff
    seen: Optional[bytes] = None
    beginning: Optional[bytes] = None
    """Of what was seen: as much of it as a glance shows."""
    revoked: frozenset[Rule] = frozenset()
    open: list[Happening] = field(default_factory=list)
    writers: dict[int, Optional[Process]] = field(default_factory=dict)
    """Of devices.allow, since the last look at what they wrote."""
    keys: tuple[bytes, ...] = ()
    """What events call its files."""
    heard_at_once: bool = True
    """How its marks are at present: see `urgent`."""
    first: tuple[bytes, ...] = ()
    """What to write at once when systemd has denied all."""
    settling: bool = False
    settled: Optional[bytes] = None
    """While `settling`: its list before that."""
    resting: bool = False
    """Too many events: its marks are away for a while."""
    hushed: bool = False
    """What is allowed in it wakes nobody, for the time of a rewrite by systemd: until `lull_ends`."""
    lull_ends: float = float("-inf")
    closed: bool = False
    rewritten_at: float = float("-inf")
    """When systemd was last seen to write devices.deny."""

    def __post_init__(self) -> None:
        """Work out what is to be there."""
        self.watch(self.watched)
        self._since, self._denies, self._events = 0.0, 0, 0

    def watch(self, watched: Watched) -> None:
        """Take new orders for the same control group."""
        self.watched = watched
        self.revoked &= watched.undeclared | watched.declared
        self._want()

    @property
    def urgent(self) -> bool:
        """Whether something is lost, or missed, if its writes are not seen at once."""
        return bool(self._undeclared) or self.watched.growing

    @property
    def entitled(self) -> frozenset[Rule]:
        """All that is to be there."""
        return self._undeclared | self._declared

    def look(self) -> Missing:
        """Read the list, and return what it lacks. Raises CgroupGoneError, CgroupUnreadableError."""
        self.seen = text = self.files.read()
        if self.revoked and self.revoked != (still := parse(text).missing(self.revoked)):
            self.revoked = still
            self._want()
        self.beginning = text[:GLANCE]
        return self.lacking(text)

    def lacking(self, text: bytes) -> Missing:
        """Return what a list lacks. Raises CgroupUnreadableError."""
        return missing(text, self._undeclared, self._declared)

    def respect(self, rules: frozenset[Rule]) -> None:
        """Let these be away: somebody meant it."""
        self.revoked |= rules
        self._want()

    def too_many(self, at: float, *, denied: bool) -> bool:
        """Count an event; return whether there are too many of them."""
        if at - self._since > 1.0:
            self._since, self._denies, self._events = at, 0, 0
        self._events += 1
        self._denies += denied
        return self._denies > _MOST_DENIES or self._events > _MOST_EVENTS

    def _want(self) -> None:
        self._undeclared = same(self.watched.undeclared - self.revoked)
        self._declared = same(self.watched.declared - self.revoked - self.watched.undeclared)
        self.first = missing(b"", self._undeclared, frozenset()).lines if self.watched.heal else ()
