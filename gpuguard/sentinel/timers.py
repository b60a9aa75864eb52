"""Things to do later. Times are CLOCK_MONOTONIC's."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Optional


class Timers:
    """What is to be done, by time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()

    @property
    def next(self) -> Optional[float]:
        """When the first of them is due, None for never."""
        return self._heap[0][0] if self._heap else None

    def at(self, when: float, do: Callable[[], None]) -> None:
        """Have something done then."""
        heapq.heappush(self._heap, (when, next(self._numbers), do))

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        """Have something done in so many seconds."""
        self.at(time.monotonic() + seconds, do)

    def run(self) -> None:
        """Do what is due."""
        while self._heap and self._heap[0][0] <= time.monotonic():
            heapq.heappop(self._heap)[2]()
