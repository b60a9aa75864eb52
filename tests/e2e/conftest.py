"""Fixtures of the acceptance tests: gpuguard in the module's node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Protocol

import pytest

from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.nvidia import toolkit
from tests.lab.nvidia.driver import Driver
from tests.lab.scope import Scope

_MUCH = 6000  # characters


class Launch(Protocol):
    """Makes the gpuguard of the module's node with these tables of the configuration; it does not start it."""

    def __call__(self, **tables: Mapping[str, object]) -> Gpuguard:
        """Make it."""


class MakeScope(Protocol):
    """Starts a bare scope named as a container's is, with a GPU written by a hook: systemd is not told of it."""

    def __call__(self) -> Scope:
        """Start it."""


@pytest.fixture
def gpu_scope(node: Node) -> Iterator[MakeScope]:
    """Return the way to scopes with GPU0 in `node`; they end with the test."""
    scopes = []

    def make() -> Scope:
        scopes.append(node.scope())
        hook.allow(scopes[-1].cgroup, GPU0)
        return scopes[-1]

    yield make
    for scope in scopes:
        scope.stop()


@pytest.fixture
def launch(node: Node) -> Iterator[Launch]:
    """Return the way to gpuguard in `node`; it is killed and what it learnt is removed after the test.

    The test fails if the daemon told of a fault of its own. What it has printed last is shown with a test that failed.
    """
    made: list[Gpuguard] = []

    def make(**tables: Mapping[str, object]) -> Gpuguard:
        made.append(stack.enter_context(Gpuguard(node, **tables)))
        return made[-1]

    with ExitStack() as stack:
        yield make
    for guard in made:
        print(guard.output()[-_MUCH:])
        assert "internal error" not in guard.output()
        assert "Traceback" not in guard.output()


@pytest.fixture(scope="module")
def nvidia_toolkit(node: Node) -> None:
    """Install the imitation of NVIDIA's toolkit in the module's node, before the first container."""
    toolkit.install(node)


@pytest.fixture
def driver(node: Node) -> Iterator[Driver]:
    """Return the node's NVIDIA driver; the toolkit is configured as it comes."""
    toolkit.configure(node)
    with Driver(node) as made:
        yield made
