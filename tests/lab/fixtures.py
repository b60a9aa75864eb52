"""Fixtures with a real node. They skip, and say why, on a machine that cannot boot one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.lab.containers import Docker, Engine, Podman
from tests.lab.machine import why_not
from tests.lab.node import Node
from tests.lab.prober import Prober

AnyEngine = TypeVar("AnyEngine", bound=Engine)


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
def docker_v1(node_v1: Node) -> Docker:
    """Return the module's Docker; use `docker`, which removes its containers."""
    return _engine(Docker(node_v1))


@pytest.fixture(scope="module")
def podman_v1(node_v1: Node) -> Podman:
    """Return the module's Podman; use `podman`, which removes its containers."""
    return _engine(Podman(node_v1))


@pytest.fixture
def docker(docker_v1: Docker) -> Iterator[Docker]:
    """Return Docker in `node_v1`; its containers are removed after the test."""
    yield docker_v1
    docker_v1.clear()


@pytest.fixture
def podman(podman_v1: Podman) -> Iterator[Podman]:
    """Return Podman in `node_v1`; its containers are removed after the test."""
    yield podman_v1
    podman_v1.clear()


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, node_v1: Node) -> Engine:  # noqa: ARG001  # for the marker below
    """Return each container engine in `node_v1` in turn."""
    found: Engine = request.getfixturevalue(request.param)
    return found


@pytest.fixture(scope="module")
def prober(node_v1: Node) -> Prober:
    """Return the prober of `node_v1`."""
    return Prober(node_v1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark every test that boots a node, so that `-m "not node"` leaves them out."""
    for item in items:
        if {"node_v1", "node_v2"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.node)


def _engine(engine: AnyEngine) -> AnyEngine:
    reason = engine.why_not()
    if reason is not None:
        pytest.skip(reason)
    return engine
