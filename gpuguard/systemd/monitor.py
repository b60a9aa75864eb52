"""A bus monitor: who asks systemd, over the system bus, for something that rewrites device rules.

systemctl as root speaks to systemd over a private socket, which no monitor sees; container runtimes use the bus.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Optional

from gpuguard.errors import BusError
from gpuguard.source import Source, together
from gpuguard.systemd import codec, events
from gpuguard.systemd.bus import DBUS, DBUS_PATH, Bus
from gpuguard.systemd.events import OnEvent
from gpuguard.systemd.manager import MANAGER, SYSTEMD

MEMBERS = ("SetUnitProperties", "StartTransientUnit", "Reload", "Reexecute")

LONGEST_PAUSE = 60.0
PID_TIMEOUT = 1.0
# Any local user may call these methods with any body. Longer calls are passed over: a runtime's take a few KiB, and
# the costliest body of this size takes a fifth of a second to decode.
MAX_CALL = 64 * 1024
# systemd refuses longer names (UNIT_NAME_MAX); no property's name is as long as that.
MAX_NAME = 255
MAX_PROPERTIES = 64
# Calls that wait for their caller's pid; those beyond are delivered without one.
MAX_WAITING = 256


class MonitorSource:
    """Delivers Called, and the standing of the monitor's connection. Needs root, as dbus-daemon's policy has it."""

    def __init__(self, address: str, on_event: OnEvent) -> None:
        self._address = address
        self._on_event = on_event
        self._source = Source(events.MONITOR, on_event)
        self._waiting: asyncio.Queue[events.Called] = asyncio.Queue(MAX_WAITING)

    async def run(self) -> None:
        """Deliver until cancelled."""
        await together(self._source.keep(self._session, LONGEST_PAUSE), self._ask())

    async def _session(self) -> str:
        bus = Bus(self._address, self._overhear, max_message=MAX_CALL)
        try:
            await bus.connect()
            rules = [
                f"type='method_call',destination='{SYSTEMD}',interface='{MANAGER}',member='{member}'"
                for member in MEMBERS
            ]
            # From here on the bus closes this connection if it sends anything: hence the second one for the pids.
            await bus.call(DBUS, DBUS_PATH, f"{DBUS}.Monitoring", "BecomeMonitor", "asu", [rules, 0])
            self._source.up()
            return await bus.lost()
        finally:
            await bus.close()

    def _overhear(self, message: codec.Incoming) -> None:
        if message.kind != codec.CALL or message.member not in MEMBERS:
            return
        call = _called(message)
        try:
            self._waiting.put_nowait(call)
        except asyncio.QueueFull:
            self._on_event(call)

    async def _ask(self) -> None:
        bus = Bus(self._address)
        try:
            while True:
                call = await self._waiting.get()
                self._on_event(dataclasses.replace(call, pid=await _pid(bus, call.sender)))
        finally:
            await bus.close()


async def _pid(bus: Bus, sender: str) -> Optional[int]:
    try:
        await bus.connect()
        body = await bus.call(DBUS, DBUS_PATH, DBUS, "GetConnectionUnixProcessID", "s", [sender], timeout=PID_TIMEOUT)
    except BusError:  # the caller has left, or the bus: unknown
        return None
    return int(body[0])


def _called(message: codec.Incoming) -> events.Called:
    # SetUnitProperties(unit, runtime, properties), StartTransientUnit(unit, mode, properties, auxiliary units)
    unit, _, properties = (*message.body, None, None, None)[:3]
    names = [item[0] for item in properties if isinstance(item, list) and item] if isinstance(properties, list) else []
    return events.Called(
        member=message.member,
        unit=unit if _is_name(unit) else None,
        properties=tuple(name for name in names if _is_name(name))[:MAX_PROPERTIES],
        sender=message.sender,
        pid=None,
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME
