"""How many events a source follows: each costs the daemon time, and others decide how many there are."""

from __future__ import annotations

from typing import Optional


class Pace:
    """Up to `limit` events a second, in spans of `span` seconds: a burst may be as large as a whole span's.

    `over`: the last event was one too many.
    """

    def __init__(self, limit: int, span: float = 2.0) -> None:
        self.limit = limit
        self.over = False
        self._span = span
        self._since: Optional[float] = None
        self._count = 0

    def exceeded(self, now: float) -> bool:
        """Count an event; return whether it is one too many."""
        if self._since is None or now - self._since >= self._span:
            self._since, self._count = now, 0
        self._count += 1
        self.over = self._count > self.limit * self._span
        return self.over
