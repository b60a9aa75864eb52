"""The imitation of CRI-O leaves a pod's container as CRI-O does."""

from __future__ import annotations

import pytest

from tests.lab.crio import Crio
from tests.lab.devices import GPU0, GPU1
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober


def test_container_of_a_pod(node: Node, prober: Prober) -> None:
    """It is in a scope of CRI-O's, has its device until a reload, runs programs, and ends."""
    reason = Crio.why_not()
    if reason is not None:
        pytest.skip(reason)
    container = Crio(node).run("trainer", [GPU0])
    assert container.scope == f"crio-{container.id}.scope"
    assert container.cgroup == node.cgroup(container.scope)
    assert prober.open(container.cgroup, GPU0).allowed
    assert prober.open(container.cgroup, GPU1).denied
    assert "No such device or address" in container.exec(["cat", GPU0.path]).stderr
    container.update_cpu_shares(512)
    node.run(["systemctl", "daemon-reload"])
    assert prober.open(container.cgroup, GPU0).denied
    container.stop()
    until(lambda: not container.cgroup.exists(), 20, "the end of the scope")
