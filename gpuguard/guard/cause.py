"""What has just happened in systemd, so that a loss can be put down to it. Holds no clock of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from gpuguard.report.metrics import ReloadKind

# A loss that is seen this many seconds after an event is put down to it, not one that is seen later.
_FRESH = 2.0
# A reload that has begun and whose end was missed is over some time.
_LONGEST_RELOAD = 300.0
_MAX_UNITS = 1024


@dataclass(frozen=True)
class Cause:
    """Why a list changed, in the words of the metric, who wrote it, and since when that may have been."""

    cause: str = "unknown"
    writer: Optional[str] = None
    since: Optional[float] = None


class Causes:
    """Remembers reloads and property changes. All times are seconds of CLOCK_MONOTONIC."""

    def __init__(self) -> None:
        self._began: Optional[float] = None
        self._replaced = False
        self._last: Optional[tuple[str, float, float]] = None
        self._properties: dict[str, float] = {}

    def reload_began(self, now: float) -> None:
        """Note Reloading(true)."""
        self._began = now
        self._replaced = False

    def manager_replaced(self) -> None:
        """Note that a new process has taken systemd's name on the bus, as a daemon-reexec makes it."""
        self._replaced = True

    def reload_ended(self, now: float) -> ReloadKind:
        """Note Reloading(false); return which kind it was: reload or reexec."""
        kind: ReloadKind = "reexec" if self._replaced else "reload"
        self._last = (kind, now if self._began is None else self._began, now)
        self._began = None
        self._replaced = False
        return kind

    def lost_sight(self) -> None:
        """Note that the end of a reload under way will not be told."""
        self._began = None
        self._replaced = False

    def reloading(self, now: float) -> bool:
        """Whether a reload is under way, as far as the signals tell."""
        return self._began is not None and now - self._began < _LONGEST_RELOAD

    def property_set(self, unit: str, now: float) -> None:
        """Note that somebody asked systemd over the bus to set properties of a unit."""
        self._properties.pop(unit, None)
        self._properties[unit] = now
        if len(self._properties) > _MAX_UNITS:
            del self._properties[next(iter(self._properties))]

    def of_loss(self, unit: str, now: float, whole_at: Optional[float] = None) -> Cause:
        """Put a loss that is seen now down to what happened last. Unknown stays unknown.

        A reload did not take what was seen whole (`whole_at`) after its end.
        """
        if self._began is not None and self.reloading(now):
            return Cause("reexec" if self._replaced else "reload", "systemd", self._began)
        if self._last is not None and now - self._last[2] < _FRESH and (whole_at or 0.0) <= self._last[2]:
            return Cause(self._last[0], "systemd", self._last[1])
        asked = self._properties.get(unit)
        if asked is not None and now - asked < _FRESH:
            return Cause("property", "systemd", asked)
        return Cause()
