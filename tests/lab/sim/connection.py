"""A raw dbus-next connection for the lab: opened, used once or for long, and really closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType
from dbus_next.message import Message

from tests.lab.sim.faults import BusFault


async def connect(address: str) -> MessageBus:
    """Connect to a bus. Raises OSError when there is none."""
    return await MessageBus(bus_address=address).connect()


async def call(bus: MessageBus, message: Message) -> list[Any]:
    """Call a method and return the reply's body. Raises BusFault for an error reply."""
    reply = await bus.call(message)
    assert reply is not None
    if reply.message_type is MessageType.ERROR:
        raise BusFault(reply.error_name, " ".join(map(str, reply.body)))
    return list(reply.body)


async def close(bus: MessageBus) -> None:
    """Disconnect and close the socket, which dbus-next 0.2.3 leaves open."""
    bus.disconnect()  # type: ignore[no-untyped-call]  # untyped library
    # The event loop must let go of the descriptor before it is closed, or the next socket inherits its reader.
    with contextlib.suppress(OSError, EOFError):
        await bus.wait_for_disconnect()  # type: ignore[no-untyped-call]  # untyped library
    bus._stream.close()
    bus._sock.close()


def call_once(address: str, message: Message) -> list[Any]:
    """Do `call` on a connection of its own and wait for it, whether or not an event loop runs here."""

    async def talk() -> list[Any]:
        bus = await connect(address)
        try:
            return await call(bus, message)
        finally:
            await close(bus)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, talk()).result()


def manager_call(member: str, signature: str = "", body: Sequence[Any] = ()) -> Message:
    """Return a call to systemd's Manager."""
    return Message(
        destination="org.freedesktop.systemd1",
        path="/org/freedesktop/systemd1",
        interface="org.freedesktop.systemd1.Manager",
        member=member,
        signature=signature,
        body=list(body),
    )
