"""The simulated node's bus, seen by its clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from tests.lab.sim import connection
from tests.lab.sim.node import SimNode

DBUS = "org.freedesktop.DBus"


class Listener:
    """A client that keeps the members of what it hears."""

    def __init__(self, bus: MessageBus) -> None:
        self.heard: list[str] = []
        self._bus = bus
        bus.add_message_handler(self._hear)

    async def ask(self, interface: str, member: str, signature: str, *body: object) -> None:
        """Call dbus-daemon."""
        call = Message(destination=DBUS, path="/org/freedesktop/DBus", interface=interface, member=member)
        call.signature, call.body = signature, list(body)
        await connection.call(self._bus, call)

    async def until(self, member: str) -> list[str]:
        """Wait for a message and return all that was heard."""
        deadline = asyncio.get_running_loop().time() + 20
        while member not in self.heard:
            assert asyncio.get_running_loop().time() < deadline, f"heard only {self.heard}"
            await asyncio.sleep(0.01)
        return self.heard

    def _hear(self, message: Message) -> bool:
        self.heard.append(message.member)
        # A monitor must not answer the calls that it overhears; dbus-next would.
        return message.message_type is MessageType.METHOD_CALL


@pytest.fixture
async def listener(sim: SimNode) -> AsyncIterator[Listener]:
    """Return a client of the node's bus."""
    bus = await connection.connect(sim.bus_address)
    yield Listener(bus)
    await connection.close(bus)


async def test_a_monitor_sees_what_goes_over_the_bus(sim: SimNode, listener: Listener) -> None:
    """An ordinary user may monitor; calls over the bus are seen, those behind it are not."""
    scope = sim.scope()
    await listener.ask(f"{DBUS}.Monitoring", "BecomeMonitor", "asu", ["type='method_call'"], 0)
    sim.daemon_reload()
    sim.set_property(scope.name, "CPUShares", Variant("t", 512))
    sim.set_property(scope.name, "CPUShares", Variant("t", 256), visible=True)
    heard = await listener.until("SetUnitProperties")
    assert "Reload" not in heard
    assert heard.count("SetUnitProperties") == 1


async def test_nobody_hears_without_a_subscriber(sim: SimNode, listener: Listener) -> None:
    """Signals are sent from the first Subscribe on, not before."""
    await listener.ask(DBUS, "AddMatch", "s", "type='signal',interface='org.freedesktop.systemd1.Manager'")
    sim.daemon_reload()
    await connection.call(listener._bus, connection.manager_call("Subscribe"))
    sim.daemon_reexec()
    heard = await listener.until("Reloading")
    assert heard.count("Reloading") <= 2


async def test_a_storm_of_many_units_arrives_whole() -> None:
    """A reload sends two signals for each of very many units, and the connection lives on."""
    with SimNode.boot(services=1500) as node:
        bus = await connection.connect(node.bus_address)
        try:
            many = Listener(bus)
            await many.ask(DBUS, "AddMatch", "s", "type='signal',interface='org.freedesktop.systemd1.Manager'")
            await connection.call(bus, connection.manager_call("Subscribe"))
            await asyncio.get_running_loop().run_in_executor(None, node.daemon_reload)
            node.call("GetUnit", "s", "init.scope")
            await many.until("UnitNew")
            assert many.heard.count("UnitRemoved") == 1503
        finally:
            await connection.close(bus)
