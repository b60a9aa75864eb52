"""Which of a host's nodes are NVIDIA's driver's, and since when."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuguard.model.gpu_inventory import GpuInventory, Node, rule_number
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import BLOCK, CHAR, Rule
from tests.model.gpus import CAPS, MADE, STARTED, UVM, gpu, inventory

HOST = inventory(gpu(0, 0), gpu(1, 1))


def having(path: str, kind: str, major: int, minor: int, made: float = MADE) -> GpuInventory:
    """Return the host with one node more, or another one."""
    return replace(HOST, nodes={**HOST.nodes, path: Node(DeviceNumber(kind, major, minor), made)})


@pytest.mark.invariant(1)
@pytest.mark.parametrize(
    ("path", "kind", "major", "minor"),
    [
        ("/dev/nvidia-uvm", BLOCK, UVM, 0),
        ("/dev/nvidia-uvm", CHAR, CAPS, 0),
        ("/dev/nvidia-caps/nvidia-cap1", BLOCK, CAPS, 1),
        ("/dev/nvidia-caps/nvidia-cap1", CHAR, CAPS, 2),
        ("/dev/nvidia-caps/nvidia-cap1", CHAR, UVM, 1),
        ("/dev/nvidiactl", CHAR, 195, 0),
        ("/dev/nvidia0", BLOCK, 195, 0),
        ("/dev/nvidia0", CHAR, 195, 1),
        ("/dev/nvidia-other", CHAR, 195, 0),
        ("/dev/nvidia0x", CHAR, 195, 0),
    ],
)
def test_what_is_not_its_node(path: str, kind: str, major: int, minor: int) -> None:
    """Another type, another driver's major, another minor, another name: the hook gives none of these."""
    assert having(path, kind, major, minor).rule(path, STARTED) is None


def test_a_node_is_given_if_it_was_there() -> None:
    """Also one that was made at the very moment."""
    assert having("/dev/nvidia0", CHAR, 195, 0, STARTED).rule("/dev/nvidia0", STARTED) == Rule.parse("c 195:0 rw")
    assert having("/dev/nvidia0", CHAR, 195, 0, STARTED + 1).rule("/dev/nvidia0", STARTED) is None
    assert HOST.rule("/dev/nvidia9", STARTED) is None


def test_whether_all_is_in_place() -> None:
    """A node for each GPU and for no other, with its own number, none of them of later."""
    assert HOST.in_place(STARTED)
    assert having("/dev/nvidia0", CHAR, 195, 0, STARTED).in_place(STARTED)
    assert not having("/dev/nvidia0", CHAR, 195, 0, STARTED + 1).in_place(STARTED)
    assert not having("/dev/nvidia2", CHAR, 195, 2).in_place(STARTED)
    assert replace(having("/dev/nvidia2", CHAR, 195, 2), excluded=frozenset({2})).in_place(STARTED)
    assert not having("/dev/nvidia1", CHAR, 1, 3).in_place(STARTED)
    assert having("/dev/nvidia9", CHAR, 1, 3).gpu_nodes() == {0: "/dev/nvidia0", 1: "/dev/nvidia1"}


def test_the_number_of_a_rule() -> None:
    """A wildcard has none."""
    assert rule_number(Rule.parse("c 195:0 rw")) == DeviceNumber(CHAR, 195, 0)
    assert rule_number(Rule.parse("c 195:* rw")) is None
    assert rule_number(Rule.parse("c *:0 rw")) is None


@pytest.mark.invariant(1)
def test_a_gap_in_the_minors() -> None:
    """The driver counts from 0: a GPU may have gone with its node, unless that one is kept from everybody."""
    for host in (inventory(gpu(0, 1), gpu(1, 2)), inventory(gpu(0, 0), gpu(1, 2))):
        assert not host.in_place(STARTED)
        assert not replace(host, gpus=None).in_place(STARTED)
    assert replace(inventory(gpu(0, 0), gpu(1, 2)), excluded=frozenset({1})).in_place(STARTED)
    assert replace(HOST, gpus=None).in_place(STARTED)
