"""The fake systemd's connection to the bus: calls in, replies and signals out, on raw messages."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Callable, Optional

from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType, NameFlag
from dbus_next.message import Message

from tests.lab.sim import connection
from tests.lab.sim.manager import SYSTEMD

DBUS = "org.freedesktop.DBus"
_DEPARTURES = f"type='signal',sender='{DBUS}',member='NameOwnerChanged',arg2=''"

Job = Callable[[], Awaitable[None]]
Serve = Callable[[Message], Awaitable[None]]


class Bus:
    """One connection at a time. `serve` gets each call, as a job in `queue`, to be done one after the other."""

    def __init__(self, address: str, queue: asyncio.Queue[Job]) -> None:
        self.serve: Serve
        self.subscribers: set[str] = set()
        self._address = address
        self._queue = queue
        self._bus: Optional[MessageBus] = None

    async def connect(self) -> None:
        """Connect and take systemd's name over from whoever has it. Raises OSError when there is no bus."""
        before = self._bus
        bus = await connection.connect(self._address)
        bus.add_message_handler(lambda message: self._receive(bus, message))
        match = Message(
            destination=DBUS,
            path="/org/freedesktop/DBus",
            interface=DBUS,
            member="AddMatch",
            signature="s",
            body=[_DEPARTURES],
        )
        await connection.call(bus, match)
        await bus.request_name(SYSTEMD, NameFlag.ALLOW_REPLACEMENT | NameFlag.REPLACE_EXISTING)
        self._bus = bus
        if before:
            await connection.close(before)

    async def leave(self) -> None:
        """Leave the bus and forget who had subscribed there, as systemd does when its bus dies."""
        if self._bus:
            await connection.close(self._bus)
        self._bus = None
        self.subscribers.clear()

    async def emit(self, path: str, interface: str, member: str, signature: str, body: list[Any]) -> None:
        """Send a signal to all, if there is at least one subscriber."""
        if self.subscribers:
            kind = MessageType.SIGNAL
            await self.send(
                Message(
                    message_type=kind, path=path, interface=interface, member=member, signature=signature, body=body
                )
            )

    async def send(self, message: Message) -> None:
        """Send one message and wait until it has gone out; without a bus it goes nowhere.

        The wait keeps the socket's buffer from overflowing, which dbus-next takes for fatal.
        """
        bus = self._bus
        if bus and bus.connected:
            await asyncio.wait({bus.send(message), bus._disconnect_future}, return_when=asyncio.FIRST_COMPLETED)

    def _receive(self, bus: MessageBus, message: Message) -> bool:
        if message.message_type is MessageType.SIGNAL and message.member == "NameOwnerChanged":
            self.subscribers.discard(message.body[0])
        if message.message_type is not MessageType.METHOD_CALL:
            return False
        if bus is self._bus:  # what a new process has not read, it never answers
            self._queue.put_nowait(lambda: self.serve(message))
        return True
