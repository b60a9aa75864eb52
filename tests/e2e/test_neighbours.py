"""What the service's start and stop do to the device rules of other units: nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import gate
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import ROOT, Node
from tests.lab.scope import Scope

UNIT = "etc/systemd/system/gpuguard.service"
SLICE = "etc/systemd/system/gpuguard.slice"


@pytest.fixture
def service(node: Node) -> Iterator[str]:
    """Put the units into the node, with a program that mends nothing, and return the service's text."""
    shipped = (ROOT / "systemd" / "gpuguard.service").read_text(encoding="utf-8")
    text = shipped.replace("/usr/bin/gpuguard run", "/bin/sleep infinity").replace("Type=notify", "Type=exec")
    node.path(SLICE).write_text((ROOT / "systemd" / "gpuguard.slice").read_text(encoding="utf-8"))
    node.path(UNIT).write_text(text)
    yield text
    node.run(["systemctl", "stop", "gpuguard"])
    node.path(UNIT).unlink()
    node.path(SLICE).unlink()


@pytest.fixture
def neighbour(node: Node) -> Iterator[Scope]:
    """Return a scope in system.slice, which has no CPU controller in this node."""
    scope = node.scope()
    assert node.mode == "v2" or not node.cgroup(scope.name, "cpu").exists()
    yield scope
    scope.stop()


def keeps(node: Node, neighbour: Scope, verb: str) -> bool:
    """Give the neighbour a rule behind systemd's back, do something to the service, and say whether it stays."""
    hook.allow(neighbour.cgroup, GPU0)
    node.run(["systemctl", verb, "gpuguard"])
    return gate.has(neighbour.cgroup, GPU0)


@pytest.mark.usefixtures("service")
def test_the_service_leaves_its_neighbours_rules_alone(node: Node, neighbour: Scope) -> None:
    """A rule that systemd does not know survives every start and end of the service."""
    for verb in ("start", "restart", "kill", "stop", "start"):
        assert keeps(node, neighbour, verb)


@pytest.mark.cgroup("v1")  # on v2 device programs are no controller that a slice could gain
@pytest.mark.parametrize(
    ("line", "instead"),
    [
        ("Slice=gpuguard.slice", "Slice=system.slice\nCPUWeight=1000"),
        ("After=dbus.socket", "After=dbus.socket\nBefore=delegated.service"),
    ],
)
def test_other_units_would_not(node: Node, neighbour: Scope, service: str, line: str, instead: str) -> None:
    """A weight in system.slice, or the mere name of a unit with Delegate=yes, makes systemd rewrite their rules."""
    node.path("etc/systemd/system/delegated.service").write_text("[Service]\nExecStart=/bin/true\nDelegate=yes\n")
    assert line in service
    node.path(UNIT).write_text(service.replace(line, instead))
    assert not keeps(node, neighbour, "start")
