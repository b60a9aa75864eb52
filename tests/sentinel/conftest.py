"""Fixtures for the sentinel's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kernel.groups import Groups, kernel_groups
from tests.lab.node import Node
from tests.lab.scope import Scope
from tests.sentinel.driven import GPU, Driven, driven, give
from tests.sentinel.inside import Inside, inside


@pytest.fixture
def kernel() -> Iterator[Groups]:
    """Return a slice on the kernel's v1 devices hierarchy."""
    with kernel_groups() as groups:
        yield groups


@pytest.fixture
def scope(node_v1: Node) -> Iterator[Scope]:
    """Return a scope with a GPU that systemd does not know."""
    made = node_v1.scope()
    give(made, *GPU)
    yield made
    made.stop()


@pytest.fixture
def sentinel(node_v1: Node) -> Iterator[Driven]:
    """Return a sentinel."""
    with driven(node_v1) as started:
        yield started


@pytest.fixture
def loop(kernel: Groups, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """Return the sentinel's loop, in this process."""
    with inside(kernel, monkeypatch) as made:
        yield made
