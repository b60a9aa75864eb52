"""systemd's signals: what is delivered, what is not, and what happens when the bus or systemd goes."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest

from gpuguard.systemd import signals as signals_module
from gpuguard.systemd.events import (
    SIGNALS,
    UNITS,
    ManagerReplaced,
    Reloading,
    SourceDown,
    SourceUp,
    UnitNew,
    UnitRemoved,
)
from gpuguard.systemd.signals import SignalSource
from tests.systemd.peers import BusDaemon, FakeSystemd, Peer, encoded, manager_signal, until
from tests.systemd.recorder import Recorder, running


def is_docker(name: str) -> bool:
    """Tell the units that these tests take an interest in."""
    return name.startswith("docker-")


@pytest.fixture
def recorder() -> Recorder:
    """Return an empty recorder."""
    return Recorder()


@pytest.fixture
async def source(daemon: BusDaemon, recorder: Recorder) -> AsyncIterator[SignalSource]:
    """Run a source on the test's bus."""
    signal_source = SignalSource(daemon.address, recorder, is_docker)
    async with running(signal_source.run):
        yield signal_source


@pytest.fixture
async def up(fake: FakeSystemd, source: SignalSource, recorder: Recorder) -> FakeSystemd:
    """Return a fake systemd to whose signals the running source is subscribed."""
    assert source
    await recorder.until_standing(SIGNALS, [True])
    await recorder.until_standing(UNITS, [True])
    return fake


def emit_unit(fake: FakeSystemd, member: str, name: str, destination: str = "") -> None:
    """Send UnitNew or UnitRemoved."""
    fake.emit(member, "so", name, "/org/freedesktop/systemd1/unit/x", destination=destination)


async def test_both_connections_subscribe(up: FakeSystemd) -> None:
    """Each connection subscribes for itself, as systemd keeps subscriptions by connection."""
    assert len({call.sender for call in up.called("Subscribe")}) == 2


async def test_reloads_are_delivered(up: FakeSystemd, recorder: Recorder) -> None:
    """Reloading comes with its state, begin and end."""
    up.emit("Reloading", "b", True)  # noqa: FBT003 -- a D-Bus value
    await recorder.until(Reloading(active=True))
    up.emit("Reloading", "b", False)  # noqa: FBT003
    await recorder.until(Reloading(active=False))


async def test_only_interesting_units_are_delivered(up: FakeSystemd, recorder: Recorder) -> None:
    """Units come and go under the names that were asked for; others are dropped."""
    for name in ("ssh.service", "docker-1.scope"):
        emit_unit(up, "UnitNew", name)
        emit_unit(up, "UnitRemoved", name)
    await recorder.until(UnitRemoved("docker-1.scope"))
    assert recorder.of(UnitNew) == [UnitNew("docker-1.scope")]
    assert recorder.of(UnitRemoved) == [UnitRemoved("docker-1.scope")]


async def test_the_storm_of_a_reload_is_dropped(up: FakeSystemd, recorder: Recorder) -> None:
    """That each unit is unloaded and loaded by a reload is not reported; what comes after the reload is."""
    up.emit("Reloading", "b", True)  # noqa: FBT003
    emit_unit(up, "UnitRemoved", "docker-1.scope")
    emit_unit(up, "UnitNew", "docker-1.scope")
    up.emit("Reloading", "b", False)  # noqa: FBT003
    emit_unit(up, "UnitNew", "docker-2.scope")
    await recorder.until(UnitNew("docker-2.scope"))
    assert recorder.of(UnitRemoved) == []
    assert recorder.of(UnitNew) == [UnitNew("docker-2.scope")]


async def test_the_end_of_a_reload_does_not_queue_behind_units(
    daemon: BusDaemon, fake: FakeSystemd, recorder: Recorder
) -> None:
    """Reloading(false), sent after 3,000 signals of units, is delivered before those have been looked at."""
    looked_at: list[str] = []

    def slow(name: str) -> bool:
        looked_at.append(name)
        time.sleep(0.0 if recorder.of(Reloading) else 0.01)
        return False

    async with running(SignalSource(daemon.address, recorder, slow).run):
        await recorder.until_standing(SIGNALS, [True])
        await recorder.until_standing(UNITS, [True])
        storm = encoded(manager_signal("UnitNew", "so", "docker-1.scope", "/")) * 3000
        await asyncio.get_running_loop().run_in_executor(None, fake._socket.sendall, storm)
        fake.emit("Reloading", "b", False)  # noqa: FBT003
        await recorder.until(Reloading(active=False))
        assert len(looked_at) < 3000


async def test_signals_of_others_are_ignored(up: FakeSystemd, daemon: BusDaemon, recorder: Recorder) -> None:
    """A signal that looks like systemd's but comes from another process does nothing, not even sent straight to us."""
    stranger = Peer(daemon.address)
    for destination in ("", *(call.sender for call in up.called("Subscribe"))):
        stranger.send(manager_signal("Reloading", "b", True, destination=destination))  # noqa: FBT003
        stranger.send(manager_signal("UnitRemoved", "so", "docker-1.scope", "/", destination=destination))
    stranger.call("org.freedesktop.DBus", "/", "org.freedesktop.DBus", "GetId")  # all of that has gone through the bus
    emit_unit(up, "UnitNew", "docker-2.scope")
    up.emit("Reloading", "b", False)  # noqa: FBT003
    await recorder.until(UnitNew("docker-2.scope"))
    await recorder.until(Reloading(active=False))
    assert recorder.of(UnitRemoved) == []
    assert recorder.of(Reloading) == [Reloading(active=False)]
    stranger.close()


async def test_odd_bodies_are_survived(up: FakeSystemd, recorder: Recorder) -> None:
    """Signals with bodies that systemd would not send are ignored, and the next one is delivered."""
    for member in ("UnitNew", "UnitRemoved", "Reloading"):
        up.emit(member, "")
        up.emit(member, "as", ["docker-1.scope"])
        up.emit(member, "u", 4_000_000_000)
        up.emit(member, "s", "")
    emit_unit(up, "UnitNew", "docker-2.scope")
    await recorder.until(UnitNew("docker-2.scope"))
    assert recorder.standing(UNITS) == [True]
    assert recorder.standing(SIGNALS) == [True]
    assert recorder.of(Reloading) == []


async def test_a_restart_of_the_bus_is_survived(up: FakeSystemd, daemon: BusDaemon, recorder: Recorder) -> None:
    """When dbus-daemon comes back, so does systemd, and the source is subscribed on both connections again."""
    daemon.stop()
    await until(lambda: len(recorder.of(SourceDown)) == 2)
    daemon.start()
    up.close()
    again = FakeSystemd(daemon.address)
    await until(lambda: len(recorder.of(SourceUp)) == 4)
    again.emit("Reloading", "b", True)  # noqa: FBT003
    await recorder.until(Reloading(active=True))
    again.close()


async def test_a_new_systemd_is_subscribed_to(up: FakeSystemd, daemon: BusDaemon, recorder: Recorder) -> None:
    """When another process takes systemd's name over, as in a daemon-reexec, that is told, and its signals come."""
    successor = FakeSystemd(daemon.address, replace=True)
    await recorder.until(ManagerReplaced())
    await until(lambda: len(successor.called("Subscribe")) == 2)
    successor.emit("Reloading", "b", False)  # noqa: FBT003
    await recorder.until(Reloading(active=False))
    assert up.name != successor.name
    assert recorder.of(ManagerReplaced) == [ManagerReplaced()]
    successor.close()


async def test_a_systemd_that_comes_late_is_found(daemon: BusDaemon, source: SignalSource, recorder: Recorder) -> None:
    """On a bus without systemd the source is down, and up as soon as systemd appears."""
    assert source
    await until(lambda: len(recorder.of(SourceDown)) == 2)
    late = FakeSystemd(daemon.address)
    await recorder.until_standing(SIGNALS, [False, True])
    await recorder.until_standing(UNITS, [False, True])
    late.close()
    await recorder.until_standing(SIGNALS, [False, True, False])


async def test_a_missing_bus_is_reported_once(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bus each connection says so once, names the address, and goes on trying without leaking."""
    monkeypatch.setattr(signals_module, "LONGEST_PAUSE", 0.01)
    async with running(SignalSource("unix:path=/nowhere/bus", recorder, is_docker).run):
        await until(lambda: len(recorder.events) == 2)
        before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 -- a plain count
        await asyncio.sleep(0.5)
        assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    assert all("/nowhere/bus" in event.reason for event in recorder.of(SourceDown))
    assert len(recorder.events) == 2
