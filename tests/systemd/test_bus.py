"""Method calls: their limits, their errors, and what a broken bus does to them."""

from __future__ import annotations

import asyncio
import os
import time
from functools import partial
from typing import Any

import pytest
from dbus_next.message import Message
from dbus_next.signature import Variant

from gpuguard.errors import BusError, BusTimeoutError, BusUnavailableError, NoSuchUnitError
from gpuguard.systemd import bus as bus_module
from gpuguard.systemd import wire
from gpuguard.systemd.bus import DBUS, DBUS_PATH, IN_FLIGHT, Bus
from gpuguard.systemd.codec import Incoming, variant
from tests.systemd.peers import MANAGER, SYSTEMD, SYSTEMD_PATH, BusDaemon, FakeSystemd, encoded, manager_signal, until
from tests.systemd.scripted import greet, reply_to, scripted_bus


def never(_: Message) -> None:
    """Answer nothing."""


async def get_unit(bus: Bus, timeout: float = 30) -> list[Any]:
    """Make some call to the manager."""
    return await bus.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "GetUnit", "s", ["a.scope"], timeout=timeout)


def has_more_than(items: list[Message], count: int) -> bool:
    """Tell whether there are more than `count` items."""
    return len(items) > count


def open_descriptors() -> int:
    """Count this process's open file descriptors."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- a plain count


async def test_a_call_returns_the_reply_with_variants_unwrapped(bus: Bus, fake: FakeSystemd) -> None:
    """The body of the reply is plain Python."""
    fake.answers["GetUnit"] = lambda call: Message.new_method_return(call, "a{sv}", [{"A": Variant("as", ["b"])}])
    assert await get_unit(bus) == [{"A": ["b"]}]


async def test_connecting_again_keeps_the_connection(bus: Bus) -> None:
    """connect() on a connected bus changes nothing."""
    name = bus.unique_name
    await bus.connect()
    assert bus.connected
    assert bus.unique_name == name


@pytest.mark.parametrize("address", ["unix:path=/nowhere/bus", "tcp:host=localhost,port=1", "unix:", "", "nonsense"])
async def test_an_address_without_a_bus_is_named(address: str) -> None:
    """The error of a missing bus, or of an address of an unknown kind, has the address in it."""
    with pytest.raises(BusUnavailableError) as caught:
        await Bus(address).connect()
    assert address in str(caught.value)


async def test_an_abstract_socket_is_reached() -> None:
    """unix:abstract= works as well as unix:path=."""
    async with scripted_bus(greet, abstract=f"gpuguard-test-{os.getpid()}") as address:
        bus = Bus(address)
        await bus.connect()
        await bus.close()


async def test_a_call_without_connection_fails(daemon: BusDaemon) -> None:
    """Calling before connect(), or after close(), is BusUnavailableError."""
    bus = Bus(daemon.address)
    with pytest.raises(BusUnavailableError):
        await get_unit(bus)
    await bus.connect()
    await bus.close()
    assert not bus.connected
    with pytest.raises(BusUnavailableError):
        await get_unit(bus)


async def test_a_bus_that_hangs_up_in_authentication_is_unavailable() -> None:
    """A bus that takes the user's id and closes is an error at once, not a loop without end."""

    async def hang_up(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")

    async with scripted_bus(hang_up) as address:
        with pytest.raises(BusUnavailableError, match="hung up"):
            await Bus(address).connect()


async def test_a_bus_that_refuses_the_user_says_so() -> None:
    """REJECTED is BusUnavailableError with the bus's own words."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        writer.write(b"REJECTED EXTERNAL\r\n")
        await reader.read()

    async with scripted_bus(refuse) as address:
        with pytest.raises(BusUnavailableError, match="REJECTED"):
            await Bus(address).connect()


async def test_a_bus_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting has a time limit, and leaves no descriptor behind when it passes."""
    monkeypatch.setattr(bus_module, "CONNECT_TIMEOUT", 0.05)

    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()
        await asyncio.sleep(3600)

    async with scripted_bus(silent) as address:
        with pytest.raises(BusUnavailableError, match="no answer"):
            await Bus(address).connect()


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("org.freedesktop.systemd1.NoSuchUnit", NoSuchUnitError),
        ("org.freedesktop.DBus.Error.NoReply", BusTimeoutError),
        ("org.freedesktop.DBus.Error.AccessDenied", BusError),
    ],
)
async def test_a_peers_error_becomes_gpuguards(bus: Bus, fake: FakeSystemd, name: str, kind: type[BusError]) -> None:
    """Wire errors are translated, and keep their text and their D-Bus name."""
    fake.answers["GetUnit"] = lambda call: Message.new_error(call, name, "because")
    with pytest.raises(BusError, match="because") as caught:
        await get_unit(bus)
    assert type(caught.value) is kind
    assert caught.value.name == name


async def test_without_systemd_on_the_bus_calls_are_unavailable(bus: Bus) -> None:
    """A name without owner is BusUnavailableError, and nothing is started to answer for it."""
    with pytest.raises(BusUnavailableError):
        await get_unit(bus)


async def test_a_call_without_an_answer_times_out(bus: Bus, fake: FakeSystemd) -> None:
    """A time-out is BusTimeoutError; the connection goes on, a late answer harms nobody, nothing is kept."""
    fake.answers["GetUnit"] = never
    with pytest.raises(BusTimeoutError, match="GetUnit"):
        await get_unit(bus, timeout=0.05)
    await until(lambda: fake.called("GetUnit"))
    fake.send(Message.new_method_return(fake.called("GetUnit")[0], "s", ["late"]))
    assert await bus.call(DBUS, DBUS_PATH, DBUS, "GetNameOwner", "s", [SYSTEMD]) == [fake.name]
    assert not bus._pending


async def test_at_most_32_calls_are_in_flight(bus: Bus, fake: FakeSystemd) -> None:
    """Of 400 calls at once the peer sees 32, and the next as each is answered; all are answered in the end."""
    fake.answers["GetUnit"] = never
    calls = [asyncio.ensure_future(get_unit(bus)) for _ in range(400)]
    await until(lambda: len(fake.calls) >= IN_FLIGHT)
    assert len(bus._pending) == IN_FLIGHT
    for answered in range(400):
        await until(partial(has_more_than, fake.calls, answered))
        assert len(fake.calls) - answered <= IN_FLIGHT
        fake.send(Message.new_method_return(fake.calls[answered], "u", [answered]))
    assert sorted(body[0] for body in await asyncio.gather(*calls)) == list(range(400))


async def test_400_calls_with_long_bodies_survive(bus: Bus, fake: FakeSystemd) -> None:
    """More bytes than the socket's buffer holds neither break the connection nor lose a call."""
    entries = [[f"/dev/char/195:{minor}", "rw"] for minor in range(200)]
    body = ["a.scope", True, [["DeviceAllow", variant("a(ss)", entries)]]]
    await asyncio.gather(
        *(bus.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "SetUnitProperties", "sba(sv)", body) for _ in range(400))
    )
    assert len(fake.calls) == 400
    assert bus.connected


async def test_a_cancelled_call_gives_its_place_back(bus: Bus, fake: FakeSystemd) -> None:
    """Cancelled calls leave room for others."""
    fake.answers["GetUnit"] = never
    for _ in range(IN_FLIGHT + 1):
        call = asyncio.ensure_future(get_unit(bus))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert await bus.call(DBUS, DBUS_PATH, DBUS, "GetNameOwner", "s", [SYSTEMD], timeout=10) == [fake.name]


async def test_calls_in_flight_fail_at_once_when_the_bus_dies(bus: Bus, fake: FakeSystemd, daemon: BusDaemon) -> None:
    """A broken connection fails what waits, and what queues for a place, long before the time limit."""
    fake.answers["GetUnit"] = never
    calls = [asyncio.ensure_future(get_unit(bus)) for _ in range(IN_FLIGHT + 5)]
    await until(lambda: len(fake.calls) == IN_FLIGHT)
    started = time.monotonic()
    daemon.stop()
    for call in calls:
        with pytest.raises(BusUnavailableError):
            await call
    assert time.monotonic() - started < 25
    assert not bus.connected
    assert "hung up" in await bus.lost()


async def test_a_restarted_bus_is_reached_again(bus: Bus, daemon: BusDaemon) -> None:
    """After a restart of dbus-daemon connect() makes a new connection."""
    daemon.stop()
    await bus.lost()
    with pytest.raises(BusUnavailableError):
        await bus.connect()
    daemon.start()
    await bus.connect()
    assert await bus.call(DBUS, DBUS_PATH, DBUS, "GetId")


async def test_no_descriptor_is_left_after_100_reconnects(daemon: BusDaemon) -> None:
    """Each connection's socket is closed, whichever end closes first, also when connecting fails."""
    bus = Bus(daemon.address)
    before = open_descriptors()
    for round_ in range(100):
        await bus.connect()
        if round_ % 10 == 0:
            daemon.stop()
            await bus.lost()
            with pytest.raises(BusUnavailableError):
                await bus.connect()
            daemon.start()
        elif round_ % 2:
            await bus.close()
        else:
            bus._connection._end("as if it broke")  # type: ignore[union-attr]  # it is connected
    await bus.close()
    assert open_descriptors() == before


async def test_a_message_that_is_too_long_is_passed_over(daemon: BusDaemon) -> None:
    """Beyond `max_message` a message is not decoded, and the next one is received."""
    received: list[Incoming] = []
    bus = Bus(daemon.address, received.append, max_message=10_000)
    await bus.connect()
    fake = FakeSystemd(daemon.address)
    fake.emit("UnitNew", "s", "x" * 200_000, destination=bus.unique_name)
    fake.emit("UnitNew", "s", "y", destination=bus.unique_name)
    await until(lambda: any(message.member == "UnitNew" for message in received))
    assert [message.body for message in received if message.member == "UnitNew"] == [["y"]]
    fake.close()
    await bus.close()


def damaged(message: Message) -> bytes:
    """Return a message of the right length whose body cannot be read."""
    raw = encoded(message)
    return raw[:-8] + b"\xff" * 8


async def test_a_signal_that_cannot_be_read_is_passed_over() -> None:
    """One undecodable signal does not end the connection."""
    received: list[Incoming] = []

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        writer.write(damaged(manager_signal("UnitNew", "ss", "a", "b")))
        writer.write(encoded(manager_signal("UnitNew", "s", "good")))
        await reader.read()

    async with scripted_bus(script) as address:
        bus = Bus(address, received.append)
        await bus.connect()
        await until(lambda: received)
        assert [message.body for message in received] == [["good"]]
        await bus.close()


@pytest.mark.parametrize("rubbish", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b"l\2"])
async def test_rubbish_instead_of_a_reply_fails_the_call(rubbish: bytes) -> None:
    """What is no D-Bus ends in BusUnavailableError or the time limit, and in nothing else."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.read(4096)
        writer.write(rubbish)
        await writer.drain()

    async with scripted_bus(script) as address:
        bus = Bus(address)
        await bus.connect()
        with pytest.raises(BusUnavailableError):
            await get_unit(bus, timeout=10)
        await bus.close()


async def test_a_reply_that_cannot_be_read_fails_the_call() -> None:
    """Nobody waits for the time limit because of an undecodable reply."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await reader.read(4096)
        raw = reply_to(2, "ss", "a", "b")
        writer.write(raw[:-8] + b"\xff" * 8)
        await reader.read()

    async with scripted_bus(script) as address:
        bus = Bus(address)
        await bus.connect()
        with pytest.raises(BusUnavailableError, match="cannot be read"):
            await get_unit(bus, timeout=10)
        await bus.close()


async def test_a_bus_that_stops_reading_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is unsent does not pile up without end."""
    monkeypatch.setattr(wire, "MAX_UNSENT", 100_000)

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await greet(reader, writer)
        await asyncio.sleep(3600)

    async with scripted_bus(script) as address:
        bus = Bus(address)
        await bus.connect()
        long_call = partial(bus.call, SYSTEMD, SYSTEMD_PATH, MANAGER, "GetUnit", "s", ["x" * 50_000], timeout=0.01)
        for _ in range(20):  # the socket's buffer takes some
            with pytest.raises(BusError):
                await long_call()
        with pytest.raises(BusUnavailableError, match="stopped reading"):
            await long_call()
        await bus.close()


async def test_an_error_of_the_receiver_ends_the_connection(daemon: BusDaemon) -> None:
    """A bug in what takes the messages shows as a lost connection, not as one that is silent for ever."""

    def broken(_: Incoming) -> None:
        raise ZeroDivisionError

    bus = Bus(daemon.address, broken)
    await bus.connect()  # dbus-daemon greets with NameAcquired
    assert "reader failed" in await bus.lost()
    await bus.close()


async def test_a_flood_of_messages_leaves_turns_to_others(daemon: BusDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """While thousands of signals are being read, other tasks of the process go on."""
    monkeypatch.setattr(wire, "TURN", 0.0002)
    received: list[Incoming] = []
    bus = Bus(daemon.address, received.append)
    await bus.connect()
    fake = FakeSystemd(daemon.address)
    flood = encoded(manager_signal("UnitNew", "s", "a.scope", destination=bus.unique_name)) * 3000
    fake._socket.sendall(flood)
    time.sleep(0.1)  # noqa: ASYNC251 -- nothing is read until the bus has filled the socket
    before = most = 0
    while len(received) < 3000:
        await asyncio.sleep(0)
        most, before = max(most, len(received) - before), len(received)
    assert most < 100  # nearly 300 fit into what is read at once
    fake.close()
    await bus.close()
