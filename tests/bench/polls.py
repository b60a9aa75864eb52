"""What one round of the clock costs when nothing has changed, by the number of GPU scopes."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import structlog

from gpuguard.config import Settings
from gpuguard.guard.build import Assembly, assemble
from gpuguard.guard.clock import Clock
from gpuguard.kernel import bpf
from gpuguard.model.state import State
from gpuguard.report.metrics import Metrics
from tests.bench.crowd import Crowd
from tests.bench.table import table
from tests.lab.errors import LabError
from tests.lab.node import Node

WANTED = 10  # milliseconds for 500 scopes on v2

_ROUNDS = 25
_SETTLE = 0.5  # seconds
_PATIENCE = 120.0
_SPARE = 100  # descriptors for all else


def measure(node: Node, counts: tuple[int, ...]) -> str:
    """Return the table: CPU time of a round of the clock over `count` protected scopes, and of a bare BPF_PROG_QUERY.

    The guard runs in this process, on the node's control groups and bus, as the daemon would.
    """
    rows = []
    for count in counts:
        with Crowd(node, count) as crowd, _descriptors(2 * count + _SPARE):
            rounds, query = asyncio.run(_measure(node, crowd))
        row = [str(count), f"{rounds * 1000:.2f}", f"{rounds / count * 1e6:.1f}"]
        rows.append([*row, *([f"{query * 1e6:.2f}", f"{rounds / count / query:.1f}"] if query else ["none", ""])])
    header = ("GPU scopes", "round, ms", "per scope, µs", "bare query, µs", "ratio")
    wanted = f" (want less than {WANTED} ms for 500)" if node.mode == "v2" else ""
    return table(f"CPU time of one round of the clock, nothing changed, cgroup {node.mode}{wanted}", header, rows)


async def _measure(node: Node, crowd: Crowd) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as run:
        assembly = _assemble(node, run)
        try:
            clock = Clock(assembly.guard, assembly.watch, _PATIENCE, _SETTLE)
            await _protected(assembly, clock, len(crowd.names))
            rounds, queries = [], []
            with _opened(crowd.cgroups if node.mode == "v2" else []) as directories:
                for _ in range(_ROUNDS):
                    rounds.append(_cpu(clock.round))
                    await assembly.watch.idle()
                    queries.append(_cpu(lambda: [bpf.query(one, effective=True) for one in directories]))
            return median(rounds), median(queries) / len(directories) if directories else 0.0
        finally:
            await assembly.close()


def _assemble(node: Node, run: str) -> Assembly:
    root = str(node.path("/")).rstrip("/")
    bus = f"unix:path={root}/run/dbus/system_bus_socket"
    paths = {"root": root, "cgroup": f"{root}/sys/fs/cgroup", "bus": bus, "run": run}
    log = structlog.get_logger(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    return assemble(
        Settings.from_mapping({"paths": paths}), Metrics(), log, enforce=True, settle=_SETTLE, writable=True
    )


async def _protected(assembly: Assembly, clock: Clock, count: int) -> None:
    """Make rounds until all scopes have been learnt and declared."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        clock.round()
        await assembly.watch.idle()
        states = [scope.state for scope in assembly.guard.scopes.values()]
        if states.count(State.PROTECTED) == count:
            return
        if time.monotonic() > deadline:
            raise LabError(f"of {count} scopes {states.count(State.PROTECTED)} are protected after {_PATIENCE:g} s")
        await asyncio.sleep(_SETTLE / 2)


def _cpu(work: Callable[[], object]) -> float:
    before = time.thread_time()
    work()
    return time.thread_time() - before


@contextmanager
def _opened(cgroups: list[Path]) -> Iterator[list[int]]:
    directories = [os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY) for cgroup in cgroups]
    try:
        yield directories
    finally:
        for directory in directories:
            os.close(directory)


@contextmanager
def _descriptors(count: int) -> Iterator[None]:
    """Let this process have so many open files, as the unit lets the daemon."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
