"""Containers of every kind that is known: who they are, and that what they lose comes back and stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.recognition import Payload, assert_done_by, assert_healed, assert_recognised, usual
from tests.lab import hook
from tests.lab.containerd import NAMESPACE, POD, Containerd, Nerdctl
from tests.lab.containers import Engine
from tests.lab.crio import Crio
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.nspawn import Nspawn
from tests.lab.prober import Prober
from tests.lab.scope import Scope


@pytest.fixture
def nerdctl(containerd: Containerd) -> Iterator[Nerdctl]:
    """Return what names containers as nerdctl does; they are removed after the test."""
    found = Nerdctl(containerd.node)
    yield found
    found.clear()


@pytest.fixture
def crio(node: Node) -> Iterator[Crio]:
    """Return what leaves containers as CRI-O does; they are removed after the test."""
    reason = Crio.why_not()
    if reason is not None:
        pytest.skip(reason)
    found = Crio(node)
    yield found
    found.clear()


@pytest.fixture
def plain(node: Node) -> Iterator[Scope]:
    """Return a scope that is named as no container's is; it ends with the test."""
    scope = Scope(node, "training.scope", ("/dev/null rwm", "char-pts rwm"), "strict")
    yield scope
    scope.stop()


def test_docker_and_podman(engine: Engine, launch: Launch, prober: Prober) -> None:
    """Their containers have the user's name, and neither a pod nor a namespace."""
    payload = Payload.of(engine.run("trainer", [GPU0]), engine.program)
    guard = launch().start()
    assert_healed(guard, prober, payload)
    assert_recognised(guard, payload)
    assert_done_by(guard, *usual(engine.node))


def test_containerd_with_a_pods_container(containerd: Containerd, launch: Launch, prober: Prober) -> None:
    """The CRI plugin's notes tell the container, its pod and its namespace."""
    payload = Payload.of(containerd.run("trainer", [GPU0]), "containerd", NAMESPACE, POD)
    guard = launch().start()
    assert_healed(guard, prober, payload)
    assert_recognised(guard, payload)
    assert_done_by(guard, *usual(containerd.node))


def test_names_of_nerdctl(nerdctl: Nerdctl, launch: Launch, prober: Prober) -> None:
    """A container that is named as nerdctl's are has its name; containerd's namespace is none of Kubernetes'."""
    payload = Payload.of(nerdctl.run("trainer", [GPU0]), "nerdctl")
    guard = launch().start()
    assert_healed(guard, prober, payload)
    assert_recognised(guard, payload)


def test_notes_of_crio(crio: Crio, launch: Launch, prober: Prober) -> None:
    """A container that is named, noted and kept on disk as CRI-O's are has its name, its pod and its namespace."""
    payload = Payload.of(crio.run("trainer", [GPU0]), "cri-o", NAMESPACE, POD)
    guard = launch().start()
    assert_healed(guard, prober, payload)
    assert_recognised(guard, payload)


def test_plain_unit(plain: Scope, launch: Launch, prober: Prober) -> None:
    """A unit that the configuration names is guarded under its own name."""
    hook.allow(plain.cgroup, GPU0)
    payload = Payload(plain.name, plain.cgroup, "systemd", plain.name)
    guard = launch(scopes={"units": ["train*.scope"]}).start()
    assert_healed(guard, prober, payload)
    assert_recognised(guard, payload)
    assert_done_by(guard, *usual(plain.node))


def test_machine(nspawn: Nspawn, launch: Launch, prober: Prober) -> None:
    """A machine of nspawn's is a container with its machine's name."""
    machine = nspawn.run("train-0")
    hook.allow(machine.cgroup, GPU0)
    payload = Payload(machine.scope, machine.cgroup, "nspawn", machine.name, machine.name)
    guard = launch().start()
    assert_healed(guard, prober, payload)
    assert prober.open(machine.inside, GPU0).allowed
    assert_recognised(guard, payload)
    assert_done_by(guard, *usual(nspawn.node))


def test_machine_in_a_service(nspawn: Nspawn, launch: Launch, prober: Prober) -> None:
    """In systemd-nspawn@.service the unit's own files declare a device; what the configuration names is guarded."""
    machine = nspawn.run("train-0", [GPU0], how="template")
    guard = launch(scopes={"units": ["systemd-nspawn@*.service"]}).start()
    payload = Payload(machine.scope, machine.cgroup, "", machine.scope)
    if nspawn.node.mode == "v1":
        assert_healed(guard, prober, payload)
        assert_done_by(guard, "write")
    else:
        guard.await_state(machine.scope, "protected", container=machine.scope)
    [found] = guard.status().values()
    assert (found["scope"], [device["device"] for device in found["devices"]]) == (machine.scope, [GPU0.rule])
