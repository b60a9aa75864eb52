"""What gpuguard does not touch, and what it does not call protected."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import Gpuguard
from tests.e2e.witness import BusWitness, Witness
from tests.lab.containers import Engine
from tests.lab.devices import FUSE, GPU0
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import Scope, random_name

RELOADS = 5
ADMIN = "/run/systemd/system/docker-.scope.d/99-admin.conf"


def drop_in(node: Node, scope: str) -> Path:
    """Return where systemd keeps a scope's DeviceAllow."""
    return node.path(f"/run/systemd/transient/{scope}.d/50-DeviceAllow.conf")


def provoke(node: Node, scopes: list[str]) -> None:
    """Do to systemd what makes gpuguard look at everything."""
    node.run(["systemctl", "daemon-reload"])
    for scope in scopes:
        node.run(["systemctl", "set-property", "--runtime", scope, "CPUShares=512"])
    node.run(["systemctl", "daemon-reexec"])


@pytest.fixture
def admin(node: Node) -> Iterator[Path]:
    """Return the path of an administrator's drop-in for all Docker containers; it is removed afterwards."""
    path = node.path(ADMIN)
    path.parent.mkdir(parents=True, exist_ok=True)
    yield path
    path.unlink(missing_ok=True)
    node.run(["systemctl", "daemon-reload"])


@pytest.mark.invariant(8)
@pytest.mark.invariant(9)
def test_others_are_not_touched(engine: Engine, gpu_scope: MakeScope, launch: Launch) -> None:
    """Containers without a device filter or without a GPU see no write, no shield and no call, whatever happens."""
    node = engine.node
    containers = [engine.run("unfiltered", args=engine.unfiltered), engine.run("plain", [FUSE])]
    bare = node.scope(random_name(engine.scope_prefix), [], policy="auto")
    gpu = gpu_scope()
    names = [*(container.scope for container in containers), bare.name]
    groups = [*(container.cgroup for container in containers), bare.cgroup]
    before = [gate.rules(group) for group in groups]
    with BusWitness(node) as bus, Witness(groups) as witness:
        guard = launch().start()
        guard.await_state(gpu.name, "protected")
        provoke(node, [*names, gpu.name])
        guard.await_reloads(2)
        guard.await_rounds()
        bus.settle()
        strangers, calls = witness.strangers(node.init), bus.calls()
        after = [gate.rules(group) for group in groups]
    bare.stop()

    assert any(gpu.name in call.arguments for call in calls if call.member == "SetUnitProperties")
    assert [call for call in calls for name in names if name in call.arguments] == []
    assert strangers == []
    assert after == before
    assert [guard.events(scope=name) for name in names] == [[], [], []]


def test_state_of_what_is_not_touched(engine: Engine, launch: Launch) -> None:
    """A container without a device filter is `unrestricted`; one without a GPU is no GPU container at all."""
    unfiltered = engine.run("unfiltered", args=engine.unfiltered)
    plain = engine.run("plain", [FUSE])
    status = launch().status()
    assert status[unfiltered.scope]["state"] == "unrestricted"
    assert status[unfiltered.scope]["devices"] == []
    assert plain.scope not in status


def test_missing_drop_in_is_a_risk(node: Node, gpu_scope: MakeScope, launch: Launch) -> None:
    """A declared container whose drop-in was deleted is `at-risk`, since a reload reads files; that takes no daemon."""
    scope = gpu_scope()
    guard = launch().start()
    guard.await_state(scope.name, "protected")
    guard.daemon.stop()
    assert guard.status()[scope.name]["state"] == "protected"

    drop_in(node, scope.name).unlink()

    container = guard.status()[scope.name]
    assert container["state"] == "at-risk"
    assert [(device["effective"], device["declared"]) for device in container["devices"]] == [(True, False)]
    assert "reload" in container["reason"]


@pytest.mark.invariant(2)
def test_missing_drop_in_is_declared_anew(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """A running daemon sees by itself that a container's drop-in was deleted, and declares it before a reload comes."""
    scope = gpu_scope()
    guard = launch().start()
    for times in range(1, 4):
        guard.await_state(scope.name, "protected")
        assert declarations(guard) == times
        drop_in(node, scope.name).unlink()
        until(drop_in(node, scope.name).exists, 20, "the declaration")
    node.run(["systemctl", "daemon-reload"])
    assert prober.open(scope.cgroup, GPU0).allowed
    assert guard.total("gpuguard_drift_total", kind="lost") == 0


def test_administrators_drop_in_is_a_risk(
    node: Node, gpu_scope: MakeScope, admin: Path, launch: Launch, prober: Prober
) -> None:
    """Where an administrator's drop-in resets DeviceAllow, a container is `at-risk`, and is declared once a change."""
    scope = gpu_scope()
    guard = launch().start()
    guard.await_state(scope.name, "protected")
    assert declarations(guard) == 1

    admin.write_text("[Scope]\nDeviceAllow=\n")
    guard.await_state(scope.name, "at-risk")
    for _ in range(3):
        touch(node, scope)
        guard.await_rounds()
    assert declarations(guard) <= 2
    assert guard.status()[scope.name]["state"] == "at-risk"

    node.run(["systemctl", "daemon-reload"])
    guard.await_reloads(1)
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
    for _ in range(3):
        touch(node, scope)
        guard.await_rounds()
    assert declarations(guard) <= 3
    assert guard.status()[scope.name]["state"] == "at-risk"

    admin.unlink()
    guard.await_state(scope.name, "protected")
    node.run(["systemctl", "daemon-reload"])
    assert prober.open(scope.cgroup, GPU0).allowed


@pytest.mark.invariant(1)
def test_reloads_are_no_fight(node: Node, gpu_scope: MakeScope, admin: Path, launch: Launch, prober: Prober) -> None:
    """Where each reload takes the devices, each loss is given back at once, however many come: nobody fights."""
    scope = gpu_scope()
    guard = launch(backoff={"max_repairs": 2, "window": "1m", "pause": "1m"}).start()
    guard.await_state(scope.name, "protected")
    admin.write_text("[Scope]\nDeviceAllow=\nDeviceAllow=/dev/null rw\nDevicePolicy=strict\n")
    for number in range(1, RELOADS + 1):
        node.run(["systemctl", "daemon-reload"])
        guard.await_reloads(number)
        until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, f"repair {number}")
        guard.await_rounds()
    assert guard.events("fight") == []
    assert guard.total("gpuguard_repairs_total", result="refused") == 0


def declarations(guard: Gpuguard) -> float:
    """Return how often the daemon has declared anything."""
    return guard.total("gpuguard_repairs_total", method="declare")


def touch(node: Node, scope: Scope) -> None:
    """Set a property of the scope over the bus, which makes the daemon ask systemd about it again."""
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    properties = ["1", "Description", "s", "touched"]
    node.run(["busctl", "call", *manager, "SetUnitProperties", "sba(sv)", scope.name, "true", *properties])
