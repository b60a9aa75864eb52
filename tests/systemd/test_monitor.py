"""The bus monitor: what it overhears, and that it stays."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest
from dbus_next.signature import Variant

from gpuguard.systemd import monitor as monitor_module
from gpuguard.systemd.events import MONITOR, Called, SourceDown
from gpuguard.systemd.monitor import MonitorSource
from tests.systemd.peers import MANAGER, SYSTEMD, SYSTEMD_PATH, BusDaemon, FakeSystemd, Peer, until
from tests.systemd.recorder import Recorder, running

REFUSAL = '<deny send_destination="org.freedesktop.DBus" send_interface="org.freedesktop.DBus.Monitoring"/>'


@pytest.fixture
def recorder() -> Recorder:
    """Return an empty recorder."""
    return Recorder()


@pytest.fixture
async def monitor(daemon: BusDaemon, recorder: Recorder) -> AsyncIterator[MonitorSource]:
    """Run a monitor that is up."""
    source = MonitorSource(daemon.address, recorder)
    async with running(source.run):
        await recorder.until_standing(MONITOR, [True])
        yield source


@pytest.fixture
def runtime(daemon: BusDaemon, fake: FakeSystemd) -> Peer:
    """Return another program on the bus, and a systemd that it can call."""
    assert fake
    return Peer(daemon.address)


def set_properties(runtime: Peer, *names: str) -> None:
    """Call SetUnitProperties as a container runtime does."""
    properties = [[name, Variant("t", 512)] for name in names]
    runtime.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "SetUnitProperties", "sba(sv)", "a.scope", True, properties)  # noqa: FBT003


async def test_a_call_of_another_program_is_overheard(
    monitor: MonitorSource, runtime: Peer, recorder: Recorder
) -> None:
    """Unit, properties, sender and the sender's pid of SetUnitProperties are delivered."""
    assert monitor
    set_properties(runtime, "CPUShares", "TasksMax")
    await until(lambda: recorder.of(Called))
    assert recorder.of(Called) == [
        Called("SetUnitProperties", "a.scope", ("CPUShares", "TasksMax"), runtime.name, os.getpid())
    ]
    runtime.close()


async def test_the_monitor_outlives_what_it_overhears(
    monitor: MonitorSource, runtime: Peer, recorder: Recorder
) -> None:
    """It answers nothing, so the bus has no reason to close its connection, however many calls pass."""
    assert monitor
    for _ in range(50):
        set_properties(runtime, "CPUShares")
    await until(lambda: len(recorder.of(Called)) == 50)
    assert recorder.standing(MONITOR) == [True]
    runtime.close()


async def test_only_calls_that_rewrite_rules_are_overheard(
    monitor: MonitorSource, runtime: Peer, recorder: Recorder
) -> None:
    """Transient units, reloads and reexecs are delivered; other methods, and other programs' methods, are not."""
    assert monitor
    runtime.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "GetUnit", "s", "a.scope")
    runtime.call("org.freedesktop.DBus", "/", MANAGER, "Reload")
    properties = [["Delegate", Variant("b", True)]]  # noqa: FBT003 -- a D-Bus value
    arguments: tuple[object, ...] = ("b.scope", "replace", properties, [])
    runtime.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))", *arguments)
    runtime.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "Reload")
    runtime.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "Reexecute")
    await until(lambda: len(recorder.of(Called)) == 3)
    assert [(call.member, call.unit, call.properties) for call in recorder.of(Called)] == [
        ("StartTransientUnit", "b.scope", ("Delegate",)),
        ("Reload", None, ()),
        ("Reexecute", None, ()),
    ]
    runtime.close()


@pytest.mark.parametrize(
    ("signature", "body", "unit", "properties"),
    [
        ("", [], None, ()),
        ("u", [7], None, ()),
        ("s", ["a.scope"], "a.scope", ()),
        ("s", ["x" * 5000], None, ()),
        ("sbs", ["a.scope", True, "CPUShares"], "a.scope", ()),
        ("sbas", ["a.scope", True, ["CPUShares"]], "a.scope", ()),
        ("sba(uv)", ["a.scope", True, [[1, Variant("s", "")]]], "a.scope", ()),
        ("sba{ss}", ["a.scope", True, {"CPUShares": ""}], "a.scope", ()),
        ("sba(s)", ["a.scope", True, [["x" * 5000], ["TasksMax"]]], "a.scope", ("TasksMax",)),
    ],
)
async def test_any_body_is_survived(  # noqa: PLR0917 -- fixtures and cases are arguments
    monitor: MonitorSource,
    runtime: Peer,
    recorder: Recorder,
    signature: str,
    body: list[object],
    unit: str | None,
    properties: tuple[str, ...],
) -> None:
    """Anybody may send anything: what can be told of a call is delivered, the rest is left out."""
    assert monitor
    runtime.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "SetUnitProperties", signature, *body)
    await until(lambda: recorder.of(Called))
    [call] = recorder.of(Called)
    assert (call.unit, call.properties) == (unit, properties)
    assert recorder.standing(MONITOR) == [True]
    runtime.close()


async def test_a_huge_call_is_passed_over(monitor: MonitorSource, runtime: Peer, recorder: Recorder) -> None:
    """A call of a megabyte is not even decoded, and the next one is overheard."""
    assert monitor
    runtime.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "SetUnitProperties", "s", "x" * 1_000_000)
    set_properties(runtime, "CPUShares")
    await until(lambda: recorder.of(Called))
    assert [call.unit for call in recorder.of(Called)] == ["a.scope"]
    runtime.close()


async def test_the_properties_of_a_call_are_capped(monitor: MonitorSource, runtime: Peer, recorder: Recorder) -> None:
    """No more than 64 property names are kept."""
    assert monitor
    set_properties(runtime, *(f"P{number}" for number in range(1000)))
    await until(lambda: recorder.of(Called))
    assert len(recorder.of(Called)[0].properties) == 64
    runtime.close()


async def test_a_caller_that_has_gone_has_no_pid(monitor: MonitorSource, recorder: Recorder) -> None:
    """A caller that left the bus before it was asked about is delivered with pid None."""
    gone = Called("Reload", None, (), ":1.999999", None)
    monitor._waiting.put_nowait(gone)
    await until(lambda: recorder.of(Called))
    assert recorder.of(Called) == [gone]


async def test_calls_beyond_the_queue_are_delivered_without_pid(
    monitor: MonitorSource, runtime: Peer, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When pids cannot be asked for as fast as calls come, calls are delivered all the same."""
    monkeypatch.setattr(monitor._waiting, "_maxsize", 1)
    for _ in range(20):
        set_properties(runtime, "CPUShares")  # blocks this test's loop, so that all of them come at once
    await until(lambda: len(recorder.of(Called)) == 20)
    assert {call.pid for call in recorder.of(Called)} == {None, os.getpid()}
    runtime.close()


async def test_a_refused_monitor_says_why(recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the right to monitor, the reason is reported once, while it goes on trying."""
    monkeypatch.setattr(monitor_module, "LONGEST_PAUSE", 0.05)
    daemon = BusDaemon(REFUSAL)
    try:
        daemon.start()
        async with running(MonitorSource(daemon.address, recorder).run):
            await until(lambda: recorder.events)
            await asyncio.sleep(0.3)
    finally:
        daemon.close()
    [event] = recorder.of(SourceDown)
    assert "AccessDenied" in event.reason


async def test_a_restart_of_the_bus_is_survived(monitor: MonitorSource, daemon: BusDaemon, recorder: Recorder) -> None:
    """The monitor is back after a restart of dbus-daemon, and still asks for pids."""
    assert monitor
    daemon.stop()
    await recorder.until_standing(MONITOR, [True, False])
    daemon.start()
    await recorder.until_standing(MONITOR, [True, False, True])
    fake = FakeSystemd(daemon.address)
    runtime = Peer(daemon.address)
    set_properties(runtime, "CPUShares")
    await until(lambda: recorder.of(Called))
    assert recorder.of(Called)[0].pid == os.getpid()
    runtime.close()
    fake.close()
