"""The way to systemd for those who ask it now and then: connected when it is needed."""

from __future__ import annotations

import time
from typing import Optional

from gpuguard.errors import BusUnavailableError
from gpuguard.systemd.bus import Bus
from gpuguard.systemd.manager import Manager

# After a failure nobody waits for another one during this many seconds.
_REST = 1.0


class Link:
    """One connection for calls, made on demand and again after it broke. Create it inside the running loop."""

    def __init__(self, address: str) -> None:
        self._manager = Manager(Bus(address))
        self._failed_at = 0.0
        self._failure: Optional[BusUnavailableError] = None

    async def manager(self) -> Manager:
        """Return the manager behind a connected bus. Raises BusUnavailableError."""
        bus = self._manager.bus
        if bus.connected:
            return self._manager
        if self._failure is not None and time.monotonic() - self._failed_at < _REST:
            raise BusUnavailableError(str(self._failure))
        try:
            await bus.connect()
        except BusUnavailableError as error:
            self._failure, self._failed_at = error, time.monotonic()
            raise
        self._failure = None
        return self._manager

    @property
    def unique_name(self) -> str:
        """Our own name on the bus, "" before the first connection."""
        return self._manager.bus.unique_name

    async def close(self) -> None:
        """Close the connection."""
        await self._manager.bus.close()
