"""The arena of a module: one node, one daemon, one honest container for all its attacks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.attacks.arena import PACE, QUICK, Arena
from tests.e2e.gpuguard import Gpuguard
from tests.lab.containers import Docker
from tests.lab.node import Node
from tests.lab.prober import Prober


@contextmanager
def opened(request: pytest.FixtureRequest, node: Node, prober: Prober) -> Iterator[Arena]:
    """Have an arena for the time of the block."""
    docker: Docker = request.getfixturevalue(f"docker_{node.mode}")
    with Gpuguard(node, guard=QUICK, backoff={"max_repairs": 1000}) as guard:
        guard.pace = PACE
        guard.start()
        arena = Arena(node, guard, docker, prober)
        guard.await_state(arena.honest.scope, "protected")
        yield arena
        docker.clear()


@pytest.fixture(scope="module")
def grounds(request: pytest.FixtureRequest, node: Node, prober: Prober) -> Iterator[Arena]:
    """Return the module's arena; use `arena`, which ends the attackers."""
    with opened(request, node, prober) as arena:
        yield arena


@pytest.fixture
def arena(grounds: Arena) -> Iterator[Arena]:
    """Return the arena; who came in leaves with the test, which fails if the daemon told of a fault of its own."""
    yield grounds
    grounds.leave()
    grounds.assert_no_fault()
