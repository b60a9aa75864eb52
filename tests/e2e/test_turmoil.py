"""Much at once: reloads without end, containers that come and go, somebody who takes away what is given back."""

from __future__ import annotations

import threading

import pytest

from gpuguard.kernel.devices_v1 import SHIELD
from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import RUN, Gpuguard
from tests.e2e.reloads import reloading
from tests.e2e.witness import Witness
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober

RELOADS = 20
COMERS = 20


@pytest.mark.invariant(8)
def test_reloads_without_end(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """With one reload on another's heels, every scope is repaired, declared once, and then left alone.

    The next reload may come between the first repair and the declaration, and take the devices once more.
    """
    guard = launch(guard={"declare": False}).start()
    scopes = [gpu_scope() for _ in range(5)]
    for scope in scopes:
        guard.await_state(scope.name, "at-risk")
    with reloading(node):
        guard.await_reloads(RELOADS)
        for scope in scopes:
            guard.await_state(scope.name, "protected")
        # What was given back while the sentinel did not know of the declaration yet is still being told.
        guard.await_reloads(guard.total("gpuguard_reloads_total") + 2)
        deeds = guard.deeds()
        guard.await_reloads(guard.total("gpuguard_reloads_total") + RELOADS)
        assert guard.deeds() == deeds
    assert guard.total("gpuguard_drift_total", kind="lost") >= len(scopes)
    assert guard.total("gpuguard_repairs_total", method="declare") == len(scopes)
    assert guard.events("fight") == []
    for scope in scopes:
        assert prober.open(scope.cgroup, GPU0).allowed
        assert not (scope.cgroup / SHIELD).exists()


def test_containers_come_and_go_during_reloads(node: Node, launch: Launch) -> None:
    """Containers that start and end while systemd reloads leave nothing behind: no ledger entry, no state, no fault."""
    guard = launch().start()
    with reloading(node):
        for _ in range(COMERS):
            scope = node.scope()
            hook.allow(scope.cgroup, GPU0)
            scope.stop()
        last = node.scope()
    # A reload that comes before gpuguard has seen a rule takes it for good: nobody knows of it.
    hook.allow(last.cgroup, GPU0)
    guard.await_state(last.name, "protected")
    last.stop()
    until(lambda: not guard.samples("gpuguard_container_info"), 20, "the end of all containers to be seen")
    until(lambda: not list(node.path(f"{RUN}/ledger").iterdir()), 20, "all containers to be forgotten")


@pytest.mark.invariant(8)
def test_quarrel_ends_in_a_pause(gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """Who takes away what is given back gets it three times, then a pause and an alert; when he stops all is well."""
    scope = gpu_scope()
    backoff = {"max_repairs": 3, "window": "1m", "pause": "30s"}
    guard = launch(backoff=backoff).start()
    guard.await_state(scope.name, "protected")
    over = threading.Event()

    def quarrel() -> None:
        while not over.wait(0.02):
            gate.take_away(scope.node, scope.name, GPU0)

    thread = threading.Thread(target=quarrel)
    thread.start()
    try:
        until(lambda: guard.events("fight"), 30, "the alert")
        guard.await_rounds()  # what was done before is counted then
        with Witness([scope.cgroup]) as witness:
            deeds = done(guard)
            guard.await_rounds()
            assert [write for write in witness.writes() if write.pid == guard.daemon.pid] == []
            assert done(guard) == deeds
        guard.await_state(scope.name, "lost")
    finally:
        over.set()
        thread.join()
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 90, "the repair after the pause")
    until(lambda: guard.events("fight_over"), 90, "the end of the alert")
    guard.await_state(scope.name, "protected")
    assert guard.total("gpuguard_repairs_total", result="refused") > 0


def done(guard: Gpuguard) -> float:
    """Return how often anything was done, from one answer: what is refused is counted at each look."""
    deeds = guard.deeds()
    return sum(count for labels, count in deeds.items() if ("result", "refused") not in labels)
