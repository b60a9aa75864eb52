"""Containers whose device rules are not in a scope of systemd's: who they are, and that they keep their GPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.e2e.recognition import Payload, assert_done_by, assert_healed, assert_recognised
from tests.lab.containers import Crun, Docker, Engine, Podman
from tests.lab.devices import GPU0
from tests.lab.distribution import root
from tests.lab.errors import UnsuitableError
from tests.lab.fixtures import need_node
from tests.lab.node import Node
from tests.lab.payloads import Quadlet, Split
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


def assert_kept(guard: Gpuguard, prober: Prober, payload: Payload) -> None:
    """Assert that gpuguard knows a container, that a reload takes nothing from it, and that nothing was done.

    On cgroup v1 that it is healed besides, by a write, when somebody takes the GPU away.
    """
    if guard.node.mode == "v1":
        assert_healed(guard, prober, payload)
        assert_done_by(guard, "write")
    else:
        guard.await_state(payload.scope, "protected", container=payload.id)
        guard.node.run(["systemctl", "daemon-reload"])
        guard.await_reloads(1)
        guard.await_rounds()
        assert prober.open(payload.cgroup, GPU0).allowed
        assert_done_by(guard)
    assert_recognised(guard, payload)


def test_without_systemd(cgroupfs: Engine, launch: Launch, prober: Prober) -> None:
    """With the cgroupfs driver there is nothing to declare, and status says so."""
    payload = Payload.of(cgroupfs.run("trainer", [GPU0]), cgroupfs.program)
    guard = launch().start()
    assert_kept(guard, prober, payload)
    [found] = guard.status().values()
    assert "systemd does not manage this control group" in found["reason"]


def test_podman_with_crun(crun: Crun, launch: Launch, prober: Prober) -> None:
    """What crun puts below the scope is given back there, since systemd has no part in it."""
    payload = Payload.of(crun.run("trainer", [GPU0]), "podman")
    assert_kept(launch().start(), prober, payload)


def test_podman_in_a_service(split: Split, launch: Launch, prober: Prober) -> None:
    """A container in a group below a service's is known by that group, and healed there."""
    payload = Payload.of(split.run("trainer", [GPU0]), "podman")
    assert_kept(launch().start(), prober, payload)


@pytest.mark.node
@pytest.mark.parametrize("mode", ["v1", "v2"])
def test_quadlet(mode: str) -> None:
    """The same of a quadlet, which has the name that its file gives."""
    need_node(mode)
    try:
        tree = root("trixie")
    except UnsuitableError as error:
        pytest.skip(str(error))
    with Node.boot(mode, tree) as node:
        quadlets = Quadlet(node)
        payload = Payload.of(quadlets.run("trainer", [GPU0]), "podman")
        with Gpuguard(node) as guard:
            assert_kept(guard.start(), Prober(node), payload)
        quadlets.clear()
