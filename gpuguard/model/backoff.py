"""Two guards that fight end in a pause and an alert, not in a busy loop."""

from __future__ import annotations

from collections import deque


class Backoff:
    """Counts repairs of one scope: the last of `max_repairs` within `window` seconds begins a `pause`.

    All times are seconds of one clock that the caller reads.
    """

    def __init__(self, max_repairs: int, window: float, pause: float) -> None:
        self._window = window
        self.pause = pause
        self._repairs: deque[float] = deque(maxlen=max_repairs)
        self.until = 0.0

    def may_repair(self, now: float) -> bool:
        """Whether a repair is allowed now."""
        return now >= self.until

    def repaired(self, now: float) -> None:
        """Count a repair; begin the pause with the last one that is allowed."""
        self._repairs.append(now)
        if len(self._repairs) == self._repairs.maxlen and now - self._repairs[0] < self._window:
            self.until = now + self.pause
            self._repairs.clear()
