"""Turns calls for a look into work: one entry per scope, coalesced, never dropped, one look at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable


class Watch:
    """Runs `look(control_group, fresh)` for every scope that is wanted, at most one at a time per scope.

    What is wanted of a scope while a look at it is under way makes one more look afterwards. The
    queue cannot grow beyond one entry per scope. `look` must not raise.
    """

    def __init__(self, look: Callable[[str, bool], Awaitable[None]]) -> None:
        self._look = look
        self._wanted: dict[str, bool] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def want(self, control_group: str, *, fresh: bool) -> None:
        """Ask for a look; `fresh`: systemd is to be asked too, whatever is remembered of it."""
        self._wanted[control_group] = self._wanted.get(control_group, False) or fresh
        if control_group not in self._tasks:
            self._tasks[control_group] = asyncio.ensure_future(self._serve(control_group))

    def busy(self, control_group: str) -> bool:
        """Whether a look at a scope is wanted or under way."""
        return control_group in self._tasks

    async def _serve(self, control_group: str) -> None:
        try:
            while control_group in self._wanted:
                await self._look(control_group, self._wanted.pop(control_group))
        finally:
            del self._tasks[control_group]

    async def looked(self, control_group: str) -> None:
        """Ask for a fresh look at a scope and wait until it is over."""
        self.want(control_group, fresh=True)
        await asyncio.wait([self._tasks[control_group]])

    async def idle(self) -> None:
        """Wait until all that was wanted so far has been looked at."""
        while self._tasks:
            await asyncio.wait(list(self._tasks.values()))

    async def close(self) -> None:
        """Cancel the looks under way and wait for them."""
        self._wanted.clear()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.clear()  # one that was cancelled before its first step could not remove itself
