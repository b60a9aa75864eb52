"""Which hierarchies a node gets, on machines of each kind."""

from __future__ import annotations

import pytest

from tests.lab.cgroups import Hierarchy, membership, plan

HYBRID = "4:memory:/job\n3:cpu,cpuacct:/\n2:devices:/\n1:name=systemd:/user.slice/a:b\n0::/user.slice/a:b\n"
UNIFIED = "0::/user.slice/session-1.scope\n"


def test_v1_node_on_a_hybrid_machine_has_all_its_hierarchies() -> None:
    """Each hierarchy of the machine is the node's too, below the groups of who boots it, co-mounted ones as one."""
    assert set(plan("x", "v1", membership(HYBRID))) == {
        Hierarchy("memory", "/job/lab-x"),
        Hierarchy("cpu,cpuacct", "/lab-x"),
        Hierarchy("devices", "/lab-x"),
        Hierarchy("name=systemd", "/user.slice/a:b/lab-x"),
        Hierarchy("", "/user.slice/a:b/lab-x"),
    }


def test_v1_node_on_a_unified_machine_gets_hierarchies_of_its_own() -> None:
    """Where the machine has no v1 hierarchy, the two that a v1 node cannot do without are made."""
    assert set(plan("x", "v1", membership(UNIFIED))) == {
        Hierarchy("devices", "/lab-x"),
        Hierarchy("name=systemd", "/lab-x"),
        Hierarchy("", "/user.slice/session-1.scope/lab-x"),
    }


@pytest.mark.parametrize("machine", [HYBRID, UNIFIED])
def test_v2_node_has_the_unified_hierarchy_alone(machine: str) -> None:
    """A v2 node touches no v1 hierarchy."""
    own = membership(machine)
    assert plan("x", "v2", own) == [Hierarchy("", f"{own['']}/lab-x")]
