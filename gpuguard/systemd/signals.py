"""systemd's own signals: reloads, and units that come and go."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Callable, Optional

from gpuguard.errors import BusUnavailableError
from gpuguard.source import Source, together
from gpuguard.systemd import codec, events
from gpuguard.systemd.bus import DBUS, DBUS_PATH, Bus
from gpuguard.systemd.events import OnEvent
from gpuguard.systemd.manager import MANAGER, SYSTEMD, SYSTEMD_PATH, Manager
from gpuguard.systemd.wire import Deliver, Wanted

LONGEST_PAUSE = 5.0

_OWNER_CHANGED = "NameOwnerChanged"
_RELOADING = "Reloading"


class SignalSource:
    """Delivers Reloading, ManagerReplaced, UnitNew and UnitRemoved, and the standing of its two connections.

    A reload sends two signals for every unit of the machine before it says that it is over. So "signals", which
    tells of reloads, has a connection of its own, where nothing queues before it. On the other, "units", that
    storm is dropped undecoded, and so are the units whose name `interested` turns down.
    """

    def __init__(self, address: str, on_event: OnEvent, interested: Callable[[str], bool]) -> None:
        self._on_event = on_event
        self._interested = interested
        signals, units = Source(events.SIGNALS, on_event), Source(events.UNITS, on_event)
        self._signals = _Stream(address, signals, (), self._manager_signal)
        self._units = _Stream(address, units, ("UnitNew", "UnitRemoved"), self._unit_signal, self._wanted)

    async def run(self) -> None:
        """Deliver until cancelled."""
        await together(self._signals.run(), self._units.run())

    def _manager_signal(self, message: codec.Incoming) -> None:
        if message.member == _OWNER_CHANGED:
            self._on_event(events.ManagerReplaced())
        elif message.member == _RELOADING:
            self._on_event(events.Reloading(active=self._signals.reloading))

    def _unit_signal(self, message: codec.Incoming) -> None:
        name = message.body[0] if message.body else None
        if not isinstance(name, str):
            return
        if message.member == "UnitNew":
            self._on_event(events.UnitNew(name))
        elif message.member == "UnitRemoved":
            self._on_event(events.UnitRemoved(name))

    def _wanted(self, header: bytes, body: bytes) -> bool:
        if b"Unit" not in header:
            return True
        return not self._units.reloading and self._interested(codec.first_string(header, body))


class _Stream:
    """One connection that is subscribed to some of the manager's signals, and again whenever that is lost."""

    def __init__(
        self,
        address: str,
        source: Source,
        members: tuple[str, ...],
        deliver: Deliver,
        wanted: Optional[Wanted] = None,
    ) -> None:
        self.reloading = False
        self._address = address
        self._source = source
        self._deliver = deliver
        self._wanted = wanted
        # By its well-known name: a daemon-reexec changes the unique one.
        self._rules = [
            f"type='signal',sender='{DBUS}',interface='{DBUS}',member='{_OWNER_CHANGED}',arg0='{SYSTEMD}'",
            *(
                f"type='signal',sender='{SYSTEMD}',path='{SYSTEMD_PATH}',interface='{MANAGER}',member='{member}'"
                for member in (_RELOADING, *members)
            ),
        ]
        self._owner = ""
        self._wake = asyncio.Event()

    async def run(self) -> None:
        await self._source.keep(self._session, LONGEST_PAUSE)

    async def _session(self) -> str:
        self._owner = ""
        self.reloading = False
        bus = Bus(self._address, self._receive, self._wanted)
        await bus.connect()
        lost = asyncio.ensure_future(bus.lost())
        lost.add_done_callback(lambda _: self._wake.set())
        try:
            for rule in self._rules:
                await bus.call(DBUS, DBUS_PATH, DBUS, "AddMatch", "s", [rule])
            with contextlib.suppress(BusUnavailableError):  # no owner; or no bus, which the next call tells
                [owner] = await bus.call(DBUS, DBUS_PATH, DBUS, "GetNameOwner", "s", [SYSTEMD])
                self._owner = self._owner or owner  # a NameOwnerChanged that came right after the reply is newer
            while bus.connected:
                self._wake.clear()
                await self._subscribe(bus)
                await self._wake.wait()
            return await lost
        finally:
            lost.cancel()
            await bus.close()

    async def _subscribe(self, bus: Bus) -> None:
        try:
            await Manager(bus).subscribe()
        except BusUnavailableError as error:
            # systemd has left the bus, as in a daemon-reexec. Its return is announced on this very connection.
            self._source.down(str(error))
        else:
            self._source.up()

    def _receive(self, message: codec.Incoming) -> None:
        # Match rules do not hold for a signal that is addressed to this connection, and anybody may send one.
        if message.sender == DBUS and message.member == _OWNER_CHANGED:
            self._owner = message.body[2]
            self._wake.set()
            if self._owner:
                self._deliver(message)
        elif message.sender == self._owner:
            if message.member == _RELOADING:
                if message.body not in ([True], [False]):
                    return
                self.reloading = message.body[0]
            self._deliver(message)
