"""Reads what may keep one waiting, such as a file on a slow disk, in a thread of its own that nobody waits for long."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Optional, TypeVar

from gpuguard.errors import RuntimeFileLateError

# A driver that is being loaded, or a host that goes to sleep, may keep one waiting. Seconds.
PATIENCE = 5.0

_Read = TypeVar("_Read")


class Reader:
    """One thread for all: a read that hangs must not take another one each time, and not hinder the end of the process.

    While one hangs, others are refused at once.
    """

    def __init__(self, name: str, patience: float = PATIENCE) -> None:
        """Start nothing yet: the first read does. `patience` is in seconds."""
        self._patience = patience
        self._todo: queue.SimpleQueue[Optional[tuple[Future[Any], Callable[[], Any]]]] = queue.SimpleQueue()
        # Not one of concurrent.futures: these are waited for when the process ends.
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._since: Optional[float] = None
        self._closed = False

    def close(self) -> None:
        """Take no more, and end the thread when it has done what it is at."""
        self._closed = True
        self._todo.put(None)

    async def read(self, what: str, read: Callable[[], _Read]) -> _Read:
        """Call `read` in the thread. Raises RuntimeFileLateError when that takes too long, and what `read` raises."""
        since = self._since
        if self._closed or (since is not None and time.monotonic() - since >= self._patience):
            raise RuntimeFileLateError(f"{what}: not read: an earlier file, or a driver, gives no answer")
        if self._thread.ident is None:
            self._thread.start()
        asked: Future[_Read] = Future()
        self._todo.put((asked, read))
        reading = asyncio.wrap_future(asked)
        try:
            await asyncio.wait({reading}, timeout=self._patience)
            if not reading.done():
                raise RuntimeFileLateError(f"{what}: no answer in {self._patience:.0f} s")
            return reading.result()
        finally:
            reading.cancel()

    def _work(self) -> None:
        while (todo := self._todo.get()) is not None:
            asked, read = todo
            if not asked.set_running_or_notify_cancel():
                continue
            self._since = time.monotonic()
            try:
                asked.set_result(read())
            except BaseException as error:  # noqa: BLE001 - it is for whoever asked
                asked.set_exception(error)
            self._since = None
