"""containerd in the node leaves what its CRI plugin leaves of a pod's container."""

from __future__ import annotations

import json

from tests.lab.containerd import NAMESPACE, POD, Containerd, Nerdctl
from tests.lab.devices import GPU0, GPU1
from tests.lab.poll import until
from tests.lab.prober import Prober


def test_container_has_its_device_until_a_reload(containerd: Containerd, prober: Prober) -> None:
    """A pod's container can open its device and no other, and a reload takes it away."""
    container = containerd.run("trainer", [GPU0])
    assert prober.open(container.cgroup, GPU0).allowed
    assert prober.open(container.cgroup, GPU1).denied
    assert "No such device or address" in container.exec(["cat", GPU0.path]).stderr
    containerd.node.run(["systemctl", "daemon-reload"])
    assert prober.open(container.cgroup, GPU0).denied


def test_container_is_a_scope_below_its_pod(containerd: Containerd) -> None:
    """Its process is in the scope, also the first container's, and below the slice of a pod."""
    container = containerd.run("trainer")
    assert container.cgroup == containerd.node.cgroup(container.scope)
    assert container.group.startswith("/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod")


def test_specification_tells_the_pod(containerd: Containerd) -> None:
    """The specification on disk has the CRI plugin's notes, and the bundle the first process."""
    container = containerd.run("trainer")
    bundle = f"/run/containerd/io.containerd.runtime.v2.task/k8s.io/{container.id}"
    notes = json.loads(containerd.node.path(f"{bundle}/config.json").read_text())["annotations"]
    assert notes["io.kubernetes.cri.container-name"] == "trainer"
    assert notes["io.kubernetes.cri.sandbox-name"] == POD
    assert notes["io.kubernetes.cri.sandbox-namespace"] == NAMESPACE
    assert int(containerd.node.path(f"{bundle}/init.pid").read_text()) == container.pid


def test_end_and_update(containerd: Containerd) -> None:
    """Its CPU weight can be changed while it runs; when it has ended its group is gone and its name free."""
    container = containerd.run("trainer")
    container.update_cpu_shares(512)
    assert container.exec(["true"]).returncode == 0
    container.stop()
    until(lambda: not container.cgroup.exists(), 20, "the end of the scope")
    containerd.run("trainer")


def test_names_of_nerdctl(containerd: Containerd) -> None:
    """In the same containerd a container is named as nerdctl's are."""
    nerdctl = Nerdctl(containerd.node)
    container = nerdctl.run("trainer")
    assert container.group == f"/system.slice/nerdctl-{container.id}.scope"
    nerdctl.clear()
