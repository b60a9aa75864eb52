"""What the event sources have in common: they try for ever, and say when they deliver and when not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Coroutine
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from gpuguard.errors import GpuguardError

FIRST_DELAY = 0.1


@dataclass(frozen=True)
class SourceUp:
    """The source delivers from now on. What happened before is unknown: look at everything once."""

    source: str


@dataclass(frozen=True)
class SourceDown:
    """The source delivers nothing until its next SourceUp; it goes on trying by itself."""

    source: str
    reason: str


Standing = Union[SourceUp, SourceDown]
OnStanding = Callable[[Standing], None]


class Source:
    """The standing of one source: each change of it is reported once."""

    def __init__(self, name: str, on_standing: OnStanding) -> None:
        self.name = name
        self._on_standing = on_standing
        self._is_up: Optional[bool] = None

    def up(self) -> None:
        """Report that it delivers from now on, unless that is known."""
        if self._is_up is not True:
            self._is_up = True
            self._on_standing(SourceUp(self.name))

    def down(self, reason: str) -> None:
        """Report that it delivers nothing, unless that is known."""
        if self._is_up is not False:
            self._is_up = False
            self._on_standing(SourceDown(self.name, reason))

    async def keep(self, session: Callable[[], Awaitable[str]], longest: float) -> None:
        """Run `session` again whenever it ends, for ever.

        It returns why it ended, or raises GpuguardError. The pauses double from 0.1 s up to `longest` seconds, and
        start anew after a session that lasted longer than that.
        """
        clock = asyncio.get_running_loop().time
        delay = FIRST_DELAY
        while True:
            started = clock()
            try:
                reason = await session()
            except GpuguardError as error:
                reason = str(error)
            self.down(reason)
            if clock() - started > longest:
                delay = FIRST_DELAY
            # Jitter, or all clients of a bus that was restarted come back in step.
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))  # noqa: S311 -- not for secrets
            delay = min(delay * 2, longest)


async def together(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until cancelled or until one fails, and end them all before that is passed on."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
