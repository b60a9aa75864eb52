"""Fixtures with a real node. They skip, and say why, on a machine that cannot boot one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

import pytest

from tests.lab.containerd import Containerd
from tests.lab.containers import Crun, Docker, Engine, Podman
from tests.lab.machine import why_not
from tests.lab.node import Node
from tests.lab.nspawn import Nspawn
from tests.lab.payloads import Split
from tests.lab.prober import Prober

AnyEngine = TypeVar("AnyEngine", bound=Engine)

# Seconds for a test, in which a node and an engine may have to be started first, on a machine that is busy.
_TIMEOUT = 300


def need_node(mode: str) -> None:
    """Skip the test when this machine cannot boot a node of this mode."""
    reason = why_not(mode)
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def node_v1() -> Iterator[Node]:
    """Return a node on cgroup v1, one for all tests of a module: leave it as you found it."""
    need_node("v1")
    with Node.boot("v1") as node:
        yield node


@pytest.fixture(scope="module")
def node_v2() -> Iterator[Node]:
    """Return a node on cgroup v2, one for all tests of a module: leave it as you found it."""
    need_node("v2")
    with Node.boot("v2") as node:
        yield node


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Node:
    """Return the module's node of each cgroup mode in turn.

    Of one alone where the test asks for `node_v1` or `node_v2` too, or where it or its module is marked `cgroup("v1")`.
    """
    found: Node = request.getfixturevalue(f"node_{request.param}")
    return found


@pytest.fixture(scope="module")
def docker_v1(node_v1: Node) -> Docker:
    """Return the module's Docker; use `docker`, which removes its containers."""
    return _engine(Docker(node_v1))


@pytest.fixture(scope="module")
def docker_v2(node_v2: Node) -> Docker:
    """Return the module's Docker on cgroup v2; use `docker`, which removes its containers."""
    return _engine(Docker(node_v2))


@pytest.fixture(scope="module")
def podman_v1(node_v1: Node) -> Podman:
    """Return the module's Podman; use `podman`, which removes its containers."""
    return _engine(Podman(node_v1))


@pytest.fixture(scope="module")
def podman_v2(node_v2: Node) -> Podman:
    """Return the module's Podman on cgroup v2; use `podman`, which removes its containers."""
    return _engine(Podman(node_v2))


@pytest.fixture
def docker(request: pytest.FixtureRequest, node: Node) -> Iterator[Docker]:
    """Return Docker in `node`; its containers are removed after the test."""
    found: Docker = request.getfixturevalue(f"docker_{node.mode}")
    yield found
    found.clear()


@pytest.fixture
def podman(request: pytest.FixtureRequest, node: Node) -> Iterator[Podman]:
    """Return Podman in `node`; its containers are removed after the test."""
    found: Podman = request.getfixturevalue(f"podman_{node.mode}")
    yield found
    found.clear()


@pytest.fixture(scope="module")
def containerd_v1(node_v1: Node) -> Containerd:
    """Return the module's containerd; use `containerd`, which removes its containers."""
    return _engine(Containerd(node_v1))


@pytest.fixture(scope="module")
def containerd_v2(node_v2: Node) -> Containerd:
    """Return the module's containerd on cgroup v2; use `containerd`, which removes its containers."""
    return _engine(Containerd(node_v2))


@pytest.fixture
def containerd(request: pytest.FixtureRequest, node: Node) -> Iterator[Containerd]:
    """Return containerd in `node`, with pods' containers; they are removed after the test."""
    found: Containerd = request.getfixturevalue(f"containerd_{node.mode}")
    yield found
    found.clear()


@pytest.fixture
def crun(node: Node) -> Iterator[Crun]:
    """Return Podman with crun in `node`; its containers are removed after the test."""
    found = _engine(Crun(node))
    reason = found.unable()
    if reason is not None:
        pytest.skip(reason)
    yield found
    found.clear()


@pytest.fixture
def split(node: Node) -> Iterator[Split]:
    """Return Podman in `node`, with containers in services; they are removed after the test."""
    found = _engine(Split(node))
    yield found
    found.clear()


@pytest.fixture
def nspawn(node: Node) -> Iterator[Nspawn]:
    """Return systemd-nspawn in `node`; its machines end with the test."""
    reason = Nspawn.why_not()
    if reason is not None:
        pytest.skip(reason)
    found = Nspawn(node)
    yield found
    found.clear()


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, node: Node) -> Engine:  # noqa: ARG001  # for the marker below
    """Return each container engine in `node` in turn."""
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def prober(node: Node) -> Prober:
    """Return the prober of `node`."""
    return Prober(node)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that asks for `node` on each cgroup mode."""
    if "node" in metafunc.fixturenames:
        metafunc.parametrize("node", _modes(metafunc), indirect=True, scope="module")


def _modes(metafunc: pytest.Metafunc) -> Sequence[str]:
    asked = [mode for mode in ("v1", "v2") if f"node_{mode}" in metafunc.fixturenames]
    marked = metafunc.definition.get_closest_marker("cgroup")
    return asked or (marked.args if marked is not None else ("v1", "v2"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that boots a node, so that `-m "not node"` leaves them out; each is given more time."""
    for item in items:
        if {"node", "node_v1", "node_v2"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.node)
        if item.get_closest_marker("node") is not None and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_TIMEOUT))


def _engine(engine: AnyEngine) -> AnyEngine:
    reason = engine.why_not()
    if reason is not None:
        pytest.skip(reason)
    return engine
