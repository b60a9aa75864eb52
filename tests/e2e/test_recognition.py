"""Containers of every kind that is known: who they are, and that what they lose comes back and stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pytest

from tests.e2e import gate
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.containerd import NAMESPACE, POD, Containerd, Nerdctl
from tests.lab.containers import Container, Crun, Engine
from tests.lab.crio import Crio
from tests.lab.devices import GPU0, GPU1
from tests.lab.node import Node
from tests.lab.nspawn import Nspawn
from tests.lab.payloads import Split
from tests.lab.prober import Prober
from tests.lab.scope import Scope


@dataclass(frozen=True)
class Payload:
    """A container as gpuguard has to see it."""

    scope: str
    cgroup: Path
    runtime: str
    id: str
    name: Optional[str] = None
    namespace: Optional[str] = None
    pod: Optional[str] = None

    @classmethod
    def of(
        cls, container: Container, runtime: str, namespace: Optional[str] = None, pod: Optional[str] = None
    ) -> Payload:
        """Return one of an engine's."""
        return cls(container.scope, container.cgroup, runtime, container.id, container.name, namespace, pod)


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


def lose(node: Node, payload: Payload) -> None:
    """Take the GPU away; no signal tells of it. On v2 systemd is made to forget it."""
    if node.mode == "v1":
        (payload.cgroup / "devices.deny").write_text(f"{GPU0.rule} rwm", encoding="ascii")
    else:
        gate.take_away(node, payload.scope, GPU0)


def assert_recognised(guard: Gpuguard, payload: Payload) -> None:
    """Assert that gpuguard knows who it is and what it was given, and nothing else of it."""
    [found] = guard.status().values()
    wanted = {key: getattr(payload, key) for key in ("scope", "runtime", "id", "name", "namespace", "pod")}
    assert {key: found[key] for key in wanted} == wanted
    assert [device["device"] for device in found["devices"]] == [GPU0.rule]


def assert_healed(guard: Gpuguard, prober: Prober, payload: Payload, *, state: str = "protected") -> None:
    """Take the GPU away twice, by hand and by a reload: it comes back, and nothing else with it."""
    node = guard.node
    guard.await_state(payload.scope, state, container=payload.id)
    lose(node, payload)
    assert prober.denied(payload.cgroup, [GPU0], within=20.0) == []
    guard.await_state(payload.scope, state, container=payload.id)
    node.run(["systemctl", "daemon-reload"])
    assert prober.denied(payload.cgroup, [GPU0], within=20.0) == []
    guard.await_state(payload.scope, state, container=payload.id)
    assert prober.open(payload.cgroup, GPU1).denied


def assert_done_by(guard: Gpuguard, *methods: str) -> None:
    """Assert that it was done in these ways, and that nothing failed."""
    for method in ("write", "declare"):
        done = guard.total("gpuguard_repairs_total", method=method, result="ok")
        assert (done > 0) is (method in methods), (method, done)
    assert guard.total("gpuguard_repairs_total", result="failed") == 0


def usual(node: Node) -> tuple[str, ...]:
    """Return how a container that systemd manages is healed and protected."""
    return ("write", "declare") if node.mode == "v1" else ("declare",)


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


def test_podman_with_crun(crun: Crun, launch: Launch, prober: Prober) -> None:
    """What crun puts below the scope is given back there, since systemd has no part in it."""
    payload = Payload.of(crun.run("trainer", [GPU0]), "podman")
    guard = launch().start()
    assert_healed(guard, prober, payload)
    assert_recognised(guard, payload)


@pytest.mark.cgroup("v1")
def test_podman_in_a_service(split: Split, launch: Launch, prober: Prober) -> None:
    """A container in a group of a service's is known by that group, and healed there."""
    payload = Payload.of(split.run("trainer", [GPU0]), "podman")
    guard = launch().start()
    assert_healed(guard, prober, payload)
    assert_recognised(guard, payload)
    assert_done_by(guard, "write")


@pytest.mark.cgroup("v2")
def test_podman_in_a_service_on_v2(split: Split, launch: Launch, prober: Prober) -> None:
    """There no reload takes anything from a container in a service, and it is known all the same."""
    payload = Payload.of(split.run("trainer", [GPU0]), "podman")
    guard = launch().start()
    guard.await_state(payload.scope, "protected", container=payload.id)
    split.node.run(["systemctl", "daemon-reload"])
    guard.await_reloads(1)
    guard.await_rounds()
    assert prober.open(payload.cgroup, GPU0).allowed
    assert_recognised(guard, payload)
    assert_done_by(guard)


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
