"""The metrics as a file for node_exporter's textfile collector, which shows whatever lies there, however old."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Optional, TypeVar

from structlog.typing import FilteringBoundLogger

from gpuguard.report.kinds import KINDS, emit

_INTERVAL = 5.0
# A disk that does not answer must not keep the daemon from its end.
_PATIENCE = 5.0

_Done = TypeVar("_Done")


class Textfile:
    """Writes the file again and again, and takes it away when nobody writes it any more.

    `count` brings the figures up to date. `write` blocks on the disk and raises OSError.
    """

    def __init__(self, log: FilteringBoundLogger, count: Callable[[], None], write: Callable[[Path], None]) -> None:
        self._log = log
        self._count = count
        self._write = write
        self._path: Optional[Path] = None
        self._written = False
        self._trouble: Optional[str] = None
        self._writing: Optional[asyncio.Future[Optional[str]]] = None

    @property
    def trouble(self) -> Optional[str]:
        """Why the file could not be written at the last try; None when it could."""
        return None if self._trouble is None else f"the textfile {self._path} cannot be written: {self._trouble}"

    async def use(self, name: str) -> None:
        """From now on write this file, "" for none; one that was written before and has another name goes."""
        path = Path(name) if name else None
        if path != self._path:
            await self.close()
            self._path, self._trouble = path, None

    async def run(self) -> None:
        """Write until cancelled. A file that cannot be written is told once for each reason."""
        while self._path is not None:
            reason = await self._refresh(self._path)
            if reason is not None and reason != self._trouble:
                emit(self._log, KINDS.textfile_failed, path=str(self._path), reason=reason)
            self._trouble = reason
            await asyncio.sleep(_INTERVAL)
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Remove the file, if it was written."""
        if self._writing is not None:  # also after run() was cancelled
            await asyncio.wait([self._writing], timeout=_PATIENCE)
        if self._path is not None and self._written:
            self._written = False
            try:
                await asyncio.wait_for(_in_thread(partial(self._path.unlink, missing_ok=True)), _PATIENCE)
            except (OSError, asyncio.TimeoutError) as error:
                reason = getattr(error, "strerror", None) or "the disk does not answer"
                emit(self._log, KINDS.trouble, reason=f"the textfile {self._path} cannot be removed: {reason}")

    async def _refresh(self, path: Path) -> Optional[str]:
        """Write the file; say why it cannot be."""
        self._count()
        self._writing = _in_thread(partial(self._attempt, path))
        return await asyncio.shield(self._writing)

    def _attempt(self, path: Path) -> Optional[str]:
        try:
            self._write(path)
            if path != self._path:  # it took so long that nobody wants it any more
                path.unlink(missing_ok=True)
        except OSError as error:
            return error.strerror or str(error)
        self._written = self._written or path == self._path
        return None


def _in_thread(work: Callable[[], _Done]) -> asyncio.Future[_Done]:
    """Have it done in a thread that nobody waits for at the end of the process, as for those of asyncio.to_thread()."""
    done: Future[_Done] = Future()

    def run() -> None:
        if done.set_running_or_notify_cancel():
            try:
                done.set_result(work())
            except BaseException as error:  # noqa: BLE001 - it is for whoever waits
                done.set_exception(error)

    threading.Thread(target=run, name="textfile", daemon=True).start()
    return asyncio.wrap_future(done)
