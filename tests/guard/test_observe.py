"""What systemd would write for a scope, in the form that the judge compares."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator

import pytest
from dbus_next.signature import Variant

from gpuguard.guard.observe import SystemdObserver, SystemdView
from gpuguard.kernel.procfs import Host
from gpuguard.model.rule import Rule
from gpuguard.systemd.link import Link
from tests.guard.overruling import overrule
from tests.lab.scope import BASICS
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU, NULL = Rule.parse("c 195:0 rw"), Rule.parse("c 1:3 rwm")
GPU_ENTRY = "/dev/char/195:0 rw"


@pytest.fixture
async def observer(sim: SimNode) -> AsyncIterator[SystemdObserver]:
    """Return an observer of the simulated node."""
    link = Link(sim.bus_address)
    yield SystemdObserver(link, Host(sim.path("/proc"), sim.path("/dev")), str(sim.root))
    await link.close()


async def view(observer: SystemdObserver, scope: SimScope) -> SystemdView:
    """Look at a scope with the eyes of a new round."""
    observer.stamps.refresh()
    return await observer.view(scope.name, scope.group)


async def test_all_of_a_scope(sim: SimNode, observer: SystemdObserver) -> None:
    """The declared rules, the run and when it began; nothing is refused and nothing is in doubt."""
    scope = sim.scope(device_allow=[*BASICS, GPU_ENTRY])
    seen = await view(observer, scope)
    assert seen.declared is not None
    assert seen.declared.covers(GPU)
    assert seen.declared.covers(NULL)
    assert not seen.declared.covers(Rule.parse("c 195:1 rw"))
    assert (len(seen.invocation), seen.refusal, seen.trouble) == (32, None, None)
    assert seen.started is not None
    assert seen.started > 0
    assert observer.version == 252


async def test_the_files_that_a_reload_would_read(sim: SimNode, observer: SystemdObserver) -> None:
    """What the administrator's drop-in takes away is not declared, though systemd has it in memory."""
    scope = sim.scope(device_allow=[*BASICS, GPU_ENTRY])
    before = await view(observer, scope)
    overrule(sim)
    seen = await view(observer, scope)
    assert seen.declared is not None
    assert seen.declared.memory.covers(GPU)
    assert not seen.declared.covers(GPU)
    assert seen.declared.covers(NULL)
    assert seen.stamp != before.stamp


async def test_a_drop_in_that_was_deleted(sim: SimNode, observer: SystemdObserver) -> None:
    """What was declared at run time is not declared any more when its file is gone."""
    scope = sim.scope(device_allow=[*BASICS, GPU_ENTRY])
    scope.drop_in.unlink()
    seen = await view(observer, scope)
    assert seen.declared is not None
    assert not seen.declared.covers(GPU)


@pytest.mark.invariant(4)
async def test_files_that_cannot_be_read(sim: SimNode, observer: SystemdObserver) -> None:
    """When a unit's file cannot be read it is unknown what a reload would make of it."""
    scope = sim.scope(device_allow=[*BASICS, GPU_ENTRY])
    scope.drop_in.unlink()
    scope.drop_in.mkdir()
    seen = await view(observer, scope)
    assert seen.declared is None
    assert seen.trouble is not None
    assert seen.trouble.startswith("what a reload would make of it cannot be told: ")
    assert seen.refusal is None


@pytest.mark.invariant(4)
async def test_without_a_bus(sim: SimNode, observer: SystemdObserver) -> None:
    """Without a bus nothing is known of systemd, and nothing is refused."""
    scope = sim.scope()
    sim.stop_bus()
    seen = await view(observer, scope)
    assert (seen.declared, seen.refusal) == (None, None)
    assert seen.trouble is not None
    assert seen.trouble.startswith("systemd cannot be asked: ")


async def test_a_unit_that_systemd_does_not_know(observer: SystemdObserver) -> None:
    """Of a control group without a unit nothing is known, and systemd is told nothing about it."""
    seen = await observer.view("docker-x.scope", "/system.slice/docker-x.scope")
    assert seen == SystemdView(refusal="systemd has no such unit", trouble="systemd has no such unit", stamp=seen.stamp)


@pytest.mark.invariant(5)
async def test_a_namesake_elsewhere(sim: SimNode, observer: SystemdObserver) -> None:
    """A unit of the same name at another control group is another one: what is declared for it says nothing."""
    scope = sim.scope(device_allow=[*BASICS, GPU_ENTRY])
    seen = await observer.view(scope.name, f"/machine.slice/{scope.name}")
    assert (seen.declared, seen.invocation) == (None, "")
    assert seen.refusal == f"systemd has the unit {scope.name} at {scope.group}"


@pytest.mark.invariant(9)
async def test_a_scope_without_a_filter(sim: SimNode, observer: SystemdObserver) -> None:
    """Policy auto without entries is no filter; one entry would create one, so it gets none."""
    seen = await view(observer, sim.scope(device_allow=[], policy="auto"))
    assert seen.declared is not None
    assert seen.declared.memory.unrestricted
    assert seen.refusal == "systemd has no device filter for it: one entry would create one"


@pytest.mark.invariant(9)
async def test_a_program_of_its_own(sim: SimNode, observer: SystemdObserver) -> None:
    """A unit that is gated by a BPF program of its own gets no entry; what a reload leaves of it cannot be told."""
    scope = sim.scope()
    sim.set_property(scope.name, "BPFProgram", Variant("a(ss)", [["device", "/sys/fs/bpf/gate"]]))
    seen = await view(observer, scope)
    assert seen.refusal is not None
    assert seen.refusal.startswith("its devices are gated by BPFProgram=")
    assert seen.declared is None
    assert seen.trouble is not None


async def test_another_program_is_no_matter(sim: SimNode, observer: SystemdObserver) -> None:
    """BPF programs of other kinds do not hinder."""
    scope = sim.scope()
    sim.set_property(scope.name, "BPFProgram", Variant("a(ss)", [["ingress", "/sys/fs/bpf/net"]]))
    assert (await view(observer, scope)).refusal is None


async def test_a_unit_that_is_not_transient(sim: SimNode, observer: SystemdObserver) -> None:
    """A service with a file of its own is told nothing: an entry would outlive this run of it."""
    sim.control("add-service", name="ollama.service")
    sim.set_property("ollama.service", "DevicePolicy", Variant("s", "strict"))
    seen = await observer.view("ollama.service", "/system.slice/ollama.service")
    assert seen.refusal == "not a transient unit: a declaration would outlive this run of it"


async def test_a_transient_service(sim: SimNode, observer: SystemdObserver) -> None:
    """A service is told nothing though it is transient: it can be restarted, and would keep the entry."""
    sim.scope("job.service")
    seen = await observer.view("job.service", "/system.slice/job.service")
    assert seen.refusal == "a service can be restarted: a declaration would outlive this run of it"


async def test_nodes_by_their_names(sim: SimNode, observer: SystemdObserver) -> None:
    """A path such as /dev/nvidia0 means the node that the host has there now."""
    if not sim.path("/dev/nvidia0").exists():
        pytest.skip("needs root to make a device node")
    scope = sim.scope(device_allow=["/dev/nvidia0 rw"])
    seen = await view(observer, scope)
    assert seen.declared is not None
    assert seen.declared.covers(GPU)
    sim.path("/dev/nvidia0").unlink()
    seen = await view(observer, scope)
    assert seen.declared is not None
    assert not seen.declared.covers(GPU)


@pytest.mark.invariant(4)
async def test_without_proc(sim: SimNode, observer: SystemdObserver) -> None:
    """When /proc/devices cannot be read it is unknown what the entries mean."""
    scope = sim.scope()
    shutil.rmtree(sim.path("/proc"))
    seen = await view(observer, scope)
    assert seen.declared is None
    assert seen.trouble is not None
