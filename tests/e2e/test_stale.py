"""Device numbers that are given out anew or are a tenant's own: exact numbers, and never another driver's devices."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import pytest

from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.e2e import gate
from tests.e2e.cold_start import ASKED, GIVEN, MARGIN, explain, lose
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.lab.containers import Container, Engine
from tests.lab.devices import CTL, GPU0, UVM, Device
from tests.lab.nvidia import toolkit
from tests.lab.nvidia.driver import UVM_TOOLS, Driver, Inventory, Mig
from tests.lab.poll import until
from tests.lab.prober import Prober

pytestmark = pytest.mark.usefixtures("nvidia_toolkit", "driver")

OLD = (UVM, UVM_TOOLS)
"""What the driver's numbers were when the containers started."""
LATER = Inventory(uvm=511, caps=UVM.major)
"""The driver loaded anew: nvidia-uvm has another major, and its old one belongs to nvidia-caps."""

TENANT = Inventory(caps=237, mig=(Mig(0, 11), Mig(0, 12)), imex=508, channels=(0, 1, 2, 2047))
CAPS, IMEX = "/dev/nvidia-caps/nvidia-cap", "/dev/nvidia-caps-imex-channels/channel"


def _nodes(path: str, major: int, *minors: int) -> tuple[Device, ...]:
    return tuple(Device(f"{path}{minor}", major, minor) for minor in minors)


CHANNELS = _nodes(IMEX, 508, 0, 1, 2047)
OWN = (GPU0, CTL, *_nodes(CAPS, 237, 102, 103), *CHANNELS)
FOREIGN = (*_nodes(CAPS, 237, 1, 2, 111, 112), *_nodes(IMEX, 508, 2))


def denied(prober: Prober, container: Container, devices: Sequence[Device]) -> list[Device]:
    """Return which of the devices a container cannot open."""
    return [device for device in devices if prober.open(container.cgroup, device).denied]


def run(engine: Engine, visible: str = "0", *options: str) -> Container:
    """Start a container that NVIDIA's hook gives what it asks for."""
    return engine.run("tenant", args=toolkit.options(engine, *options, visible=visible))


def assert_told(guard: Gpuguard, container: Container) -> None:
    """Assert that it is told of the old numbers: whose they are now, that they are in force, what to do."""
    known = guard.status()[container.scope]
    assert "510 is nvidia-caps's" in known["reason"]
    assert "restart" in known["reason"]
    explained = explain(guard, container)
    assert any("restart" in line.lower() for line in explained["advice"])
    stale = {rule["device"] for rule in explained["rules"] if rule["stale"]}
    assert stale == {device.rule for device in OLD}
    assert any(set(event["devices"]) for event in guard.events("stale", scope=container.scope))


@pytest.mark.invariant(1)
@pytest.mark.invariant(2)
@pytest.mark.parametrize("declare", [True, False], ids=["declared", "not declared"])
def test_driver_with_another_major(
    engine: Engine, prober: Prober, launch: Launch, driver: Driver, declare: bool
) -> None:
    """The container is stale, which is told at once; its old numbers stay as long as nobody takes them, and no longer.

    What somebody takes of them is given back neither at the write nor later; the GPU itself is.
    """
    container = run(engine)
    guard = launch(guard={"declare": declare}).start()
    guard.await_state(container.scope, "protected" if declare else "at-risk")
    driver.load(LATER)
    guard.await_state(container.scope, "stale")
    assert_told(guard, container)
    assert denied(prober, container, ASKED) == []

    for device in (UVM, GPU0, UVM_TOOLS):
        gate.take_away(engine.node, container.scope, device)
    until(lambda: prober.open(container.cgroup, GPU0).allowed, 20, "the GPU to be given back")
    guard.await_rounds()
    time.sleep(MARGIN)
    assert denied(prober, container, ASKED) == list(OLD)
    assert guard.status()[container.scope]["state"] == "stale"
    guard.run("repair", container.scope)
    assert denied(prober, container, ASKED) == list(OLD)
    assert not [entry for entry in gate.declared(engine.node, container.scope) if "511" in entry]


@pytest.mark.invariant(1)
def test_driver_with_another_major_before_the_daemon(
    engine: Engine, prober: Prober, launch: Launch, driver: Driver
) -> None:
    """What is not declared yet when the driver changes is not declared any more: the next reload takes it for good."""
    container = run(engine)
    guard = launch(guard={"declare": False}).start()
    guard.await_state(container.scope, "at-risk")
    guard.daemon.kill()
    driver.load(LATER)
    guard.configure()
    guard.start().await_state(container.scope, "stale")
    engine.node.run(["systemctl", "daemon-reload"])
    until(lambda: prober.open(container.cgroup, GPU0).allowed, 20, "the GPU to be given back")
    guard.await_rounds()
    time.sleep(MARGIN)
    assert denied(prober, container, ASKED) == list(OLD)
    assert not [entry for entry in gate.declared(engine.node, container.scope) if "510" in entry]


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(1)
@pytest.mark.parametrize("by_specification", [True, False], ids=["specification", "request"])
def test_driver_with_another_major_before_the_first_start(
    engine: Engine, prober: Prober, launch: Launch, driver: Driver, by_specification: bool
) -> None:
    """At a cold start, too: neither the old numbers of the specification nor new ones for the request are granted."""
    container = engine.run("tenant", GIVEN) if by_specification else run(engine)
    lose(prober, container, GIVEN)
    time.sleep(1.1)
    driver.load(LATER)
    guard = launch().start()
    until(lambda: prober.open(container.cgroup, GPU0).allowed, 20, "the GPU to be given back")
    guard.await_rounds()
    time.sleep(MARGIN)
    new = [Device(device.path, LATER.uvm, device.minor) for device in OLD]
    assert denied(prober, container, [*GIVEN[:2], *OLD, *new]) == [*OLD, *new]


@pytest.mark.invariant(1)
@pytest.mark.invariant(2)
def test_rights_of_one_tenant(engine: Engine, prober: Prober, launch: Launch, driver: Driver) -> None:
    """A MIG instance and IMEX channels come back, and are declared, minor by minor: no neighbour's, no wildcard."""
    driver.load(TENANT)
    capabilities = "--env=NVIDIA_DRIVER_CAPABILITIES=utility"
    container = run(engine, "0:0", capabilities, "--env=NVIDIA_IMEX_CHANNELS=0,1,2047")
    before = gate.rules(container.cgroup)
    assert denied(prober, container, [*OWN, *FOREIGN]) == list(FOREIGN)
    guard = launch(backoff={"max_repairs": 1000}).start()
    guard.await_state(container.scope, "protected")
    assert {device["device"] for device in guard.status()[container.scope]["devices"]} == {one.rule for one in OWN}

    for device in OWN[2:]:
        gate.take_away(engine.node, container.scope, device)
    until(lambda: not denied(prober, container, OWN), 20, "the devices to be given back")
    guard.await_state(container.scope, "protected")
    engine.node.run(["systemctl", "daemon-reload"])
    guard.await_reloads(1)
    guard.await_rounds()
    assert denied(prober, container, [*OWN, *FOREIGN]) == list(FOREIGN)
    assert gate.rules(container.cgroup) == before
    entries = gate.declared(engine.node, container.scope)
    assert {device.rule[2:] for device in OWN} <= {entry.split()[0].rpartition("/")[2] for entry in entries}
    wide = [entry for entry in entries if any(word in entry for word in ("char-195", "char-237", "char-508", "nvidia"))]
    assert wide == []
    rules = RuleSet.of(*gate.rules(container.cgroup))
    assert [device for device in FOREIGN if rules.covers(Rule.parse(f"{device.rule} r"))] == []
    ledger = json.dumps(guard.ledger())
    assert "237:*" not in ledger
    assert "508:*" not in ledger


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(1)
def test_rights_of_one_tenant_that_only_the_request_tells(
    engine: Engine, prober: Prober, launch: Launch, driver: Driver
) -> None:
    """Lost before the first start: what MIG and IMEX rights there were no request tells exactly; none is made up."""
    driver.load(TENANT)
    capabilities = "--env=NVIDIA_DRIVER_CAPABILITIES=utility"
    container = run(engine, "0:0", capabilities, "--env=NVIDIA_IMEX_CHANNELS=0,1,2047")
    lose(prober, container, OWN)
    guard = launch().start()
    guard.await_rounds()
    time.sleep(MARGIN)
    assert denied(prober, container, FOREIGN) == list(FOREIGN)
    back = {device for device in OWN if device not in denied(prober, container, OWN)}
    assert not back & set(CHANNELS), "IMEX channels are not taken from a request"
