"""What the fake systemd of the other tests claims, seen on a real one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuguard.errors import BusTimeoutError, NoSuchUnitError
from gpuguard.model.rule import Access
from gpuguard.model.unit import DeviceAllow, DevicePolicy
from gpuguard.systemd import manager as manager_module
from gpuguard.systemd.bus import Bus
from gpuguard.systemd.events import (
    MONITOR,
    SIGNALS,
    UNITS,
    Called,
    ManagerReplaced,
    Reloading,
    SourceDown,
    UnitNew,
    UnitRemoved,
)
from gpuguard.systemd.manager import MANAGER, SYSTEMD, SYSTEMD_PATH, Manager
from gpuguard.systemd.monitor import MonitorSource
from gpuguard.systemd.signals import SignalSource
from gpuguard.systemd.unit_files import UNIT_DIRS, texts
from tests.lab.node import Node
from tests.lab.scope import Scope
from tests.systemd.peers import until
from tests.systemd.recorder import Recorder, running

GPU = DeviceAllow("/dev/char/195:0", Access.RW)


@pytest.fixture
def address(node_v1: Node) -> str:
    """Return the address of the node's system bus, seen from outside."""
    return f"unix:path={node_v1.path('/run/dbus/system_bus_socket')}"


@pytest.fixture
async def bus(address: str) -> AsyncIterator[Bus]:
    """Return a connection to the node's bus."""
    connected = Bus(address)
    await connected.connect()
    yield connected
    await connected.close()


@pytest.fixture
def manager(bus: Bus) -> Manager:
    """Return the node's systemd."""
    return Manager(bus)


@pytest.fixture
def scope(node_v1: Node) -> Iterator[Scope]:
    """Return a scope as a container has it."""
    made = node_v1.scope()
    yield made
    made.stop()


@pytest.fixture
async def recorder(address: str) -> AsyncIterator[Recorder]:
    """Return what the signals and the monitor of the node report, once all of them are up."""
    recorded = Recorder()
    source = SignalSource(address, recorded, lambda name: name.startswith("docker-"))
    async with running(source.run), running(MonitorSource(address, recorded).run):
        for name in (SIGNALS, UNITS, MONITOR):
            await recorded.until_standing(name, [True])
        yield recorded


@contextlib.contextmanager
def stopped(node: Node) -> Iterator[None]:
    """Stop the node's PID 1, as if it were busy with a long reload."""
    os.kill(node.init, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(node.init, signal.SIGCONT)


async def systemctl(node: Node, *words: str) -> str:
    """Run systemctl in the node without holding up the event loop."""
    done = await asyncio.get_running_loop().run_in_executor(None, node.run, ["systemctl", *words])
    return str(done.stdout)


async def test_a_scope_is_read_as_systemctl_shows_it(node_v1: Node, manager: Manager, scope: Scope) -> None:
    """Version and properties are those that systemctl prints."""
    assert (await systemctl(node_v1, "--version")).startswith(f"systemd {await manager.version()} ")
    unit = await manager.unit(scope.name)
    shown = await systemctl(node_v1, "show", "-p", "ControlGroup,InvocationID,FragmentPath", scope.name)
    assert set(shown.split()) == {
        f"ControlGroup={unit.control_group}",
        f"InvocationID={unit.invocation}",
        f"FragmentPath={unit.fragment}",
    }
    assert (unit.transient, unit.policy) == (True, DevicePolicy.STRICT)
    assert DeviceAllow("char-pts", Access.RWM) in unit.device_allow
    assert unit.started_usec > 0


@pytest.mark.parametrize("kind", ["init.scope", "dbus.service", "system.slice", "dbus.socket", "basic.target"])
async def test_every_type_of_unit_can_be_read(manager: Manager, kind: str) -> None:
    """Units with and without a control group are read."""
    assert (await manager.unit(kind)).started_usec > 0


async def test_a_unit_that_is_gone_is_not_loaded_again(manager: Manager) -> None:
    """Asking for a unit that does not run is NoSuchUnitError."""
    with pytest.raises(NoSuchUnitError):
        await manager.unit("docker-nosuch.scope")


async def test_declared_entries_survive_a_reload(node_v1: Node, manager: Manager, scope: Scope) -> None:
    """What allow_devices() adds is in the kernel's list at once and after a reload, and repeating it adds nothing."""
    before = (await manager.unit(scope.name)).device_allow
    for _ in range(3):
        await manager.allow_devices(scope.name, [GPU])
    assert "c 195:0 rw" in (scope.cgroup / "devices.list").read_text()
    await systemctl(node_v1, "daemon-reload")
    assert "c 195:0 rw" in (scope.cgroup / "devices.list").read_text()
    assert sorted(map(str, (await manager.unit(scope.name)).device_allow)) == sorted(map(str, (*before, GPU)))


@pytest.mark.parametrize("reconnect", [False, True])
async def test_an_answer_settles_what_timed_out(
    node_v1: Node, manager: Manager, scope: Scope, monkeypatch: pytest.MonkeyPatch, *, reconnect: bool
) -> None:
    """After settled_after() a call that timed out is done, or never will be if its connection was closed meanwhile."""
    with stopped(node_v1):
        monkeypatch.setattr(manager_module, "DECLARE_TIMEOUT", 0.05)
        with pytest.raises(BusTimeoutError):
            await manager.allow_devices(scope.name, [GPU])
        if reconnect:
            await manager.bus.close()
            await manager.bus.connect()
        assert not await manager.settled_after(0.05)
    assert await manager.settled_after(30)
    settled = (await manager.unit(scope.name)).device_allow
    assert (GPU in settled) is not reconnect
    await systemctl(node_v1, "daemon-reload")
    assert set((await manager.unit(scope.name)).device_allow) == set(settled)


async def test_a_reload_is_told_without_its_storm(node_v1: Node, scope: Scope, recorder: Recorder) -> None:
    """A daemon-reload gives Reloading twice, and no word of the scope that stays; its end does give one."""
    await systemctl(node_v1, "daemon-reload")
    await recorder.until(Reloading(active=False))
    assert recorder.of(Reloading) == [Reloading(active=True), Reloading(active=False)]
    assert recorder.of(UnitRemoved) == []
    other = node_v1.scope()
    await recorder.until(UnitNew(other.name))
    await asyncio.get_running_loop().run_in_executor(None, other.stop)
    await recorder.until(UnitRemoved(other.name))
    assert UnitNew(scope.name) not in recorder.events


async def test_a_reexec_is_told_and_survived(node_v1: Node, scope: Scope, recorder: Recorder) -> None:
    """A daemon-reexec gives the same, and ManagerReplaced; afterwards signals still come."""
    await systemctl(node_v1, "daemon-reexec")
    await recorder.until(Reloading(active=False))
    assert recorder.of(Reloading) == [Reloading(active=True), Reloading(active=False)]
    assert recorder.of(ManagerReplaced) == [ManagerReplaced()]
    assert recorder.of(UnitRemoved) == []
    await systemctl(node_v1, "stop", scope.name)
    await recorder.until(UnitRemoved(scope.name))


async def test_a_restart_of_the_bus_is_survived(node_v1: Node, recorder: Recorder) -> None:
    """When the node's dbus-daemon is restarted, all sources go down and up, and a reload is told again."""
    await systemctl(node_v1, "restart", "dbus.service")
    await until(lambda: len(recorder.of(SourceDown)) == 3)
    for source in (SIGNALS, UNITS, MONITOR):
        await recorder.until_standing(source, [True, False, True])
    await systemctl(node_v1, "daemon-reload")
    await recorder.until(Reloading(active=False))


async def test_a_runtimes_call_is_overheard(node_v1: Node, scope: Scope, recorder: Recorder) -> None:
    """SetUnitProperties and Reload over the system bus are delivered with their caller, and they take effect."""
    loop = asyncio.get_running_loop()
    call = ["busctl", "call", SYSTEMD, SYSTEMD_PATH, MANAGER]
    change = ["SetUnitProperties", "sba(sv)", scope.name, "true", "1", "TasksMax", "t", "99"]
    await loop.run_in_executor(None, node_v1.run, [*call, *change])
    await loop.run_in_executor(None, node_v1.run, [*call, "Reload"])
    await until(lambda: len(recorder.of(Called)) == 2)
    first, second = recorder.of(Called)
    assert (first.member, first.unit, first.properties) == ("SetUnitProperties", scope.name, ("TasksMax",))
    assert (second.member, second.unit, second.properties) == ("Reload", None, ())
    assert second.sender.startswith(":")


@pytest.fixture
def drop_ins(node_v1: Node, scope: Scope) -> Iterator[Path]:
    """Put drop-ins of equal and of different names into every directory that may have some; return the root."""
    root = node_v1.path("/")
    made: list[Path] = []
    for number, directory in enumerate(UNIT_DIRS):
        for name in (scope.name, "docker-.scope", "scope"):
            for file in ("same", f"{99 - number}-own", f"by-name-{name}", f"by-directory-{number}"):
                path = root / directory / f"{name}.d" / f"{file}.conf"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(f"# {path.relative_to(root)}\n")
                made.append(path)
    yield root
    for path in made:
        path.unlink(missing_ok=True)  # systemd empties the generators' directories itself
        with contextlib.suppress(OSError):
            path.parent.rmdir()


async def test_a_reload_reads_the_files_that_texts_gives(
    node_v1: Node, manager: Manager, scope: Scope, drop_ins: Path
) -> None:
    """texts() has systemd's choice among drop-ins, and its order."""
    await systemctl(node_v1, "daemon-reload")
    unit = await manager.unit(scope.name)
    paths = (await systemctl(node_v1, "show", "--value", "-p", "DropInPaths", scope.name)).split()
    systemds = [(drop_ins / path.lstrip("/")).read_text() for path in (unit.fragment, *paths)]
    assert [file.text for file in texts(unit.fragment, scope.name, str(drop_ins))] == systemds
    assert len(systemds) > 20
