"""Fixtures of the matrix: each distribution in each cgroup mode, with each engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.lab.containers import Engine
from tests.lab.distribution import DISTRIBUTIONS
from tests.lab.errors import UnsuitableError
from tests.lab.fixtures import need_node
from tests.matrix.stage import Stage

Stages = dict[tuple[str, str], Stage]


@pytest.fixture(scope="session")
def _stages() -> Iterator[tuple[Stages, ExitStack]]:
    with ExitStack() as end:
        yield {}, end


@pytest.fixture(params=[(suite, mode) for suite in DISTRIBUTIONS for mode in ("v1", "v2")], ids="-".join)
def stage(request: pytest.FixtureRequest, _stages: tuple[Stages, ExitStack]) -> Iterator[Stage]:
    """Return each node of the matrix in turn; it is booted once and its containers are removed after each test."""
    stages, end = _stages
    suite, mode = request.param
    need_node(mode)
    if (suite, mode) not in stages:
        try:
            stages[suite, mode] = Stage(suite, mode, end)
        except UnsuitableError as error:
            pytest.skip(str(error))
    yield stages[suite, mode]
    for engine in stages[suite, mode].engines.values():
        engine.clear()


@pytest.fixture(params=["docker", "podman"])
def engine(request: pytest.FixtureRequest, stage: Stage) -> Engine:
    """Return each container engine of the node in turn."""
    return stage.engines[request.param]
