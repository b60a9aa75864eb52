"""Drivers and devices that come and go, as the kernel tells over netlink (uevents)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Callable

from gpuguard.kernel import netlink
from gpuguard.kernel.datagrams import Datagrams
from gpuguard.kernel.pace import Pace
from gpuguard.model.device_classes import DeviceClass
from gpuguard.model.device_event import DeviceEvent, device_event
from gpuguard.source import OnStanding, Source

UEVENTS = "uevents"

LONGEST_PAUSE = 60.0
# Of any device. The root of the machine can make them as fast as it likes, by writing to a file of sysfs.
MOST_PER_SECOND = 2000


class UeventSource:
    """Delivers DeviceEvent, for what concerns `classes`, and the standing of its socket.

    Events that were lost, or were too many, end a session: SourceDown, and at the next SourceUp the consumer looks at
    everything.
    """

    def __init__(
        self,
        classes: Iterable[DeviceClass],
        on_event: Callable[[DeviceEvent], None],
        on_standing: OnStanding,
        most_per_second: int = MOST_PER_SECOND,
    ) -> None:
        self._classes = tuple(classes)
        self._on_event = on_event
        self._most = most_per_second
        self._source = Source(UEVENTS, on_standing)

    async def run(self) -> None:
        """Deliver until cancelled."""
        await self._source.keep(self._session, LONGEST_PAUSE)

    async def _session(self) -> str:
        uevent = netlink.load().uevent
        core = uevent.AsyncUeventSocket()

        def deliver(data: bytes) -> None:
            try:
                [message] = core.marshal.parse(data)
            except ValueError:  # a network interface may have any bytes for a name: none of the guarded devices has
                return
            properties = {key: value for key, value in message.items() if isinstance(value, str)}
            event = device_event(properties, self._classes)
            if event is not None:
                self._on_event(event)

        # Not udev's group: it tells the same again, later.
        datagrams = Datagrams(core, uevent.MONITOR_GROUP_KERNEL, deliver, Pace(self._most))
        try:
            datagrams.open()
            self._source.up()
            return await datagrams.ended
        finally:
            datagrams.close()
