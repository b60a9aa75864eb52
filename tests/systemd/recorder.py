"""Runs an event source and keeps what it reports."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Callable, TypeVar

from gpuguard.systemd.events import Event, SourceDown, SourceUp
from tests.systemd.peers import until

E = TypeVar("E")


class Recorder:
    """The events so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        """Take an event."""
        self.events.append(event)

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [event for event in self.events if isinstance(event, kind)]

    def standing(self, source: str) -> list[bool]:
        """Return how often the source was reported up (True) or down (False), in order."""
        changes = [event for event in self.events if isinstance(event, (SourceUp, SourceDown))]
        return [isinstance(change, SourceUp) for change in changes if change.source == source]

    async def until(self, event: Event) -> None:
        """Wait for an event; fail after a deadline."""
        await until(lambda: event in self.events)

    async def until_standing(self, source: str, standing: list[bool]) -> None:
        """Wait until the source's standing has gone this way; fail after a deadline."""
        await until(lambda: self.standing(source) == standing)


@contextlib.asynccontextmanager
async def running(run: Callable[[], Awaitable[None]]) -> AsyncIterator[None]:
    """Run a source in the background; an error that ends it fails the test."""
    task = asyncio.ensure_future(run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
