"""Two guards that fight end in a pause and an alert, not in a busy loop."""

from __future__ import annotations


class Backoff:
    """Counts repairs of one scope: the last of `max_repairs` within `window` seconds begins a `pause`.

    All times are seconds of one clock that the caller reads.
    """

    def __init__(self, max_repairs: int, window: float, pause: float) -> None:
        self._window = window
        self.pause = pause
        self._max_repairs = max_repairs
        self._repairs: tuple[float, ...] = ()
        self.until = 0.0

    def may_repair(self, now: float) -> bool:
        """Whether a repair is allowed now."""
        return now >= self.until

    def repaired(self, now: float) -> None:
        """Count a repair; begin the pause with the last one that is allowed."""
        self._repairs = (*self._repairs, now)[-self._max_repairs :]
        if len(self._repairs) == self._max_repairs and now - self._repairs[0] < self._window:
            self.until, self._repairs = now + self.pause, ()
