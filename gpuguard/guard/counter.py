"""Where the control socket's requests go: to the desk of the guard at work, whichever that is by then."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

from gpuguard.guard.control import Answer, Report


class Counter:
    """Passes requests on to a desk; who asks between two guards waits for the next one. Make it inside the loop."""

    def __init__(self) -> None:
        self._desk: Optional[Answer] = None
        self._opened = asyncio.Event()
        self._work: set[asyncio.Future[Report]] = set()

    async def answer(self, request: dict[str, Any]) -> Report:
        """Have the desk answer. Raises what it raises, and CancelledError when its guard ends meanwhile."""
        while self._desk is None:
            await self._opened.wait()
        work = asyncio.ensure_future(self._desk(request))
        self._work.add(work)
        work.add_done_callback(self._work.discard)
        return await work

    def open(self, desk: Answer) -> None:
        """Let a desk answer from now on."""
        self._desk = desk
        self._opened.set()

    async def close(self) -> None:
        """End what the desk is at, before its guard goes."""
        self._desk = None
        self._opened.clear()
        work = list(self._work)
        for one in work:
            one.cancel()
        await asyncio.gather(*work, return_exceptions=True)
