"""pytest fixtures for tests on a simulated node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.sim.node import SimNode, why_not


@pytest.fixture
def sim() -> Iterator[SimNode]:
    """Give the test a simulated node of its own."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with SimNode.boot() as node:
        yield node
