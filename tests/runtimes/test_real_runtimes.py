"""Bundles and names of containers that real runtimes have started."""

from __future__ import annotations

import pytest

from gpuguard.model.scope_name import ContainerScope
from tests.lab.containerd import NAMESPACE, POD, Containerd
from tests.lab.containers import Crun, Docker, Engine
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.nspawn import Nspawn
from tests.runtimes.asked import ask


def parsed(unit: str) -> ContainerScope:
    """Return the container of a scope."""
    container = ContainerScope.parse(unit)
    assert container is not None
    return container


def test_docker_and_podman(node: Node, engine: Engine) -> None:
    """The specification of this run is found, with the device, the first process and the name that a user gave."""
    container = engine.run("trainer-1", devices=[GPU0])
    said = ask(node, parsed(container.scope), container.group)
    assert said["identity"]["name"] == "trainer-1"
    assert "c 195:0 rwm" in said["allowed"]
    assert said["pid"] == container.pid
    assert said["bundle"].endswith("/config.json")


def test_a_container_that_was_started_again(node: Node, engine: Engine) -> None:
    """The same id in a second run: the specification of that run is believed."""
    container = engine.run("trainer-2", devices=[GPU0])
    engine.command("stop", "--time=1", container.name)
    engine.command("start", container.name)
    _, pid = engine.identify(container.name)
    assert pid != container.pid
    assert ask(node, parsed(container.scope), container.group)["pid"] == pid


def test_another_group_s_container_gets_nothing(node: Node, docker: Docker) -> None:
    """A container's id does not help a scope that lies elsewhere."""
    container = docker.run("trainer-3", devices=[GPU0])
    said = ask(node, parsed(container.scope), f"/user.slice/user-1000.slice/{container.scope}")
    assert "is for control group" in said["error"]


def test_a_pod_s_container(node: Node, containerd: Containerd) -> None:
    """What the CRI plugin notes names the container, its pod and its namespace."""
    container = containerd.run("trainer", devices=[GPU0])
    said = ask(node, parsed(container.scope), container.group)
    assert said["identity"] == {"name": "trainer", "namespace": NAMESPACE, "pod": POD, "doubt": None}
    assert said["pid"] == container.pid
    assert "c 195:0 rwm" in said["allowed"]


@pytest.mark.cgroup("v1")
def test_crun(node: Node, crun: Crun) -> None:
    """The first process may be in a group of its own below the scope, as crun has it."""
    container = crun.run("trainer", devices=[GPU0])
    said = ask(node, parsed(container.scope), f"/machine.slice/{container.scope}")
    assert said["pid"] == container.pid
    assert "c 195:0 rwm" in said["allowed"]


@pytest.mark.cgroup("v1")
def test_nothing_is_there(node: Node) -> None:
    """A container that no runtime knows has no bundle, and no name."""
    said = ask(node, ContainerScope("docker", "0" * 64), f"/system.slice/docker-{'0' * 64}.scope")
    assert said["bundle"] is None
    assert said["identity"]["name"] is None


@pytest.mark.cgroup("v1")
def test_a_machine_of_nspawn(node: Node, nspawn: Nspawn) -> None:
    """A machine is confirmed by what systemd-machined has written, and another name is not."""
    machine = nspawn.run("my-gpu.box1")
    container = parsed(machine.scope)
    assert container == ContainerScope("nspawn", "my-gpu.box1")
    said = ask(node, container, f"/machine.slice/{machine.scope}")
    assert said["confirmed"]
    assert said["identity"]["name"] == "my-gpu.box1"
    assert not ask(node, ContainerScope("nspawn", "other"), "/machine.slice/machine-other.scope")["confirmed"]
