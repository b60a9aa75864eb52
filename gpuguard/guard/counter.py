"""Where the control socket's requests go: to the desk of the guard at work, whichever that is by then."""

from __future__ import annotations

import asyncio
from typing import Any, Optional

from gpuguard.errors import GpuguardError
from gpuguard.guard.control import Answer, Report


class Counter:
    """Passes requests on to a desk; who asks between two guards waits for the next one. Make it inside the loop."""

    def __init__(self) -> None:
        self._desk: Optional[Answer] = None
        self._opened = asyncio.Event()
        self._work: set[asyncio.Future[Report]] = set()

    async def answer(self, request: dict[str, Any]) -> Report:
        """Have the desk answer; the next one, if this one closes before it has begun.

        Raises what it raises, and GpuguardError when its guard ends meanwhile.
        """
        while True:
            while self._desk is None:
                await self._opened.wait()
            inquiry = _Inquiry(self._desk, request)
            work = asyncio.ensure_future(inquiry.run())
            self._work.add(work)
            work.add_done_callback(self._work.discard)
            try:
                await asyncio.wait({work})
            except asyncio.CancelledError:  # nobody waits for the answer any more
                work.cancel()
                raise
            if not work.cancelled():
                return work.result()
            if inquiry.begun:
                raise GpuguardError("it ends, or takes a new configuration, and has not done all of it: ask again")

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


class _Inquiry:
    """A request at a desk."""

    def __init__(self, desk: Answer, request: dict[str, Any]) -> None:
        self._desk = desk
        self._request = request
        self.begun = False

    async def run(self) -> Report:
        self.begun = True
        return await self._desk(self._request)
