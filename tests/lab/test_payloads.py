"""Podman's containers that are not in a scope of systemd's with their rules: where they are, and what a reload does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.containers import Container, Crun, Docker, Engine, Podman
from tests.lab.devices import GPU0, GPU1
from tests.lab.distribution import root
from tests.lab.errors import UnsuitableError
from tests.lab.fixtures import need_node
from tests.lab.node import Node
from tests.lab.payloads import Quadlet, Split
from tests.lab.poll import until
from tests.lab.prober import Prober


@pytest.fixture(params=[Docker, Podman])
def cgroupfs(request: pytest.FixtureRequest, node: Node) -> Iterator[Engine]:
    """Return each engine with the cgroupfs driver; its containers are removed after the test."""
    engine = request.param(node, cgroups="cgroupfs")
    reason = engine.why_not()
    if reason is not None:
        pytest.skip(reason)
    yield engine
    engine.clear()


def keeps_its_device(container: Container, prober: Prober) -> bool:
    """Whether a container has the device that it was given and no other, before a reload and after."""
    answers = []
    for _ in range(2):
        answers.append((prober.open(container.cgroup, GPU0).allowed, prober.open(container.cgroup, GPU1).denied))
        container.node.run(["systemctl", "daemon-reload"])
    return answers == [(True, True)] * 2


def test_container_without_systemd(cgroupfs: Engine, prober: Prober) -> None:
    """With the cgroupfs driver there is no unit, and a reload takes nothing."""
    container = cgroupfs.run("trainer", [GPU0])
    parent = {"docker": f"/docker/{container.id}", "podman": f"/libpod_parent/libpod-{container.id}"}
    assert container.group == parent[cgroupfs.program]
    assert container.scope == container.group.rpartition("/")[2]
    assert keeps_its_device(container, prober)


def test_container_of_crun_is_below_its_scope(crun: Crun, prober: Prober) -> None:
    """With crun the process and the rules are in a group below the scope, of which systemd knows nothing."""
    container = crun.run("trainer", [GPU0])
    assert container.cgroup == crun.node.cgroup(container.scope) / "container"
    assert keeps_its_device(container, prober)


def test_split_container_is_below_its_service(split: Split, prober: Prober) -> None:
    """With --cgroups=split the service holds the container, in a group of Podman's."""
    container = split.run("trainer", [GPU0])
    assert container.group == f"/system.slice/{container.scope}/libpod-payload-{container.id}"
    assert keeps_its_device(container, prober)
    container.stop()
    until(lambda: not container.cgroup.exists(), 20, "the end of the container")
    split.run("trainer")


@pytest.mark.node
@pytest.mark.parametrize("mode", ["v1", "v2"])
def test_quadlet(mode: str) -> None:
    """A quadlet is split likewise: the service that its generator makes holds the container."""
    need_node(mode)
    try:
        tree = root("trixie")
    except UnsuitableError as error:
        pytest.skip(str(error))
    with Node.boot(mode, tree) as node:
        quadlets = Quadlet(node)
        assert quadlets.unable() is None
        container = quadlets.run("trainer", [GPU0])
        assert container.group == f"/system.slice/trainer.service/libpod-payload-{container.id}"
        assert keeps_its_device(container, Prober(node))
        container.stop()
