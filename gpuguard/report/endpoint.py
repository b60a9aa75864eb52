"""The HTTP endpoint as the settings want it: tried again while it cannot be had, kept while they stay the same."""

from __future__ import annotations

import asyncio
from typing import Optional

from structlog.typing import FilteringBoundLogger

from gpuguard.config import Metrics
from gpuguard.errors import ConfigError
from gpuguard.report.http import Health, Render, Server
from gpuguard.report.kinds import KINDS, emit
from gpuguard.report.tls import TlsFiles

# Seconds between two tries to open it.
_RETRY = 5.0


class Endpoint:
    """Serves `render` and `health`, see http.Server, where the settings say."""

    def __init__(self, log: FilteringBoundLogger, render: Render, health: Health) -> None:
        self._log = log
        self._render = render
        self._health = health
        self._settings: Optional[Metrics] = None
        self._server: Optional[Server] = None
        self._opening: Optional[asyncio.Task[None]] = None
        self.trouble: Optional[str] = None
        """What to tell while there is none although one is wanted."""

    def same(self, settings: Metrics) -> bool:
        """Whether these settings want the endpoint that there is."""
        return self._settings is not None and _marks(settings) == _marks(self._settings)

    async def renew(self) -> None:
        """Read the TLS files again, for the connections to come. Raises ConfigError; then the old ones stay."""
        if self._server is not None:
            await self._server.renew()

    async def use(self, settings: Metrics) -> None:
        """Serve as these settings want; what differs in nothing goes on without a gap."""
        if self.same(settings):
            return
        await self.close()
        self._settings = settings
        if settings.listen:
            files = TlsFiles(settings.tls_cert, settings.tls_key, settings.client_ca or None)
            self._server = Server(settings.listen, self._render, self._health, files if settings.tls_cert else None)
            self._opening = asyncio.ensure_future(self._open(self._server))

    async def run(self) -> None:
        """Wait for ever. Raises what opening it failed with, other than an address or a file that cannot be had."""
        if self._opening is not None:
            await asyncio.shield(self._opening)
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Close it, if it is open."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._server is not None:
            await self._server.stop()
        self._settings = self._server = self._opening = self.trouble = None

    async def _open(self, server: Server) -> None:
        """Open it. One that cannot be had (an address in use) does not end the guard."""
        while (reason := await _start(server)) is not None:
            trouble = f"no metrics endpoint: {reason}"
            if trouble != self.trouble:
                emit(self._log, KINDS.endpoint_failed, reason=reason)
            self.trouble = trouble
            await asyncio.sleep(_RETRY)
        self.trouble = None


async def _start(server: Server) -> Optional[str]:
    """Start it; say why it cannot be."""
    try:
        await server.start()
    except ConfigError as error:
        return str(error)
    return None


def _marks(settings: Metrics) -> tuple[str, ...]:
    return settings.listen, settings.tls_cert, settings.tls_key, settings.client_ca
