"""`gpuguard doctor` on a real node: what the daemon tells of itself, and what is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import Gpuguard
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.scope import BASICS

ENTRY = "/dev/char/195:0 rw"
BUS = {"monitor", "signals", "units"}


def ask(guard: Gpuguard) -> tuple[int, dict[str, Any]]:
    """Run the doctor; return the exit code and the document."""
    done = guard.run("doctor", "--json")
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def down(guard: Gpuguard) -> dict[str, str]:
    """Return the event sources that are down, and why."""
    sources = ask(guard)[1]["sources"] or ()
    return {source["name"]: source["reason"] for source in sources if not source["up"]}


def test_a_node_that_is_well(node: Node, launch: Launch) -> None:
    """Sources that work, the sentinel's class, and only the advice that the kernel's real-time budget gives rise to."""
    guard = launch().start()
    scope = node.scope(device_allow=[*BASICS, ENTRY])
    with ExitStack() as stack:
        stack.callback(scope.stop)
        guard.await_state(scope.name, "protected")
        answers: list[tuple[int, dict[str, Any]]] = []

        def heard() -> bool:
            answers.append(ask(guard))
            sources = {one["name"]: one["up"] for one in answers[-1][1]["sources"] or ()}
            return all(sources.get(name) for name in BUS) and "sentinel" in sources

        until(heard, 20, "the sources")
        code, told = answers[-1]
        assert [(one["scope"], one["state"]) for one in told["containers"]] == [(scope.name, "protected")]
    assert told["sentinel"]["scheduling"] in {"rr", "nice", "normal"}
    assert told["node"]["daemon"] == "running"
    assert told["links"]["missing"] == told["links"]["nodes"]  # the lab makes none
    broken = [one for one in told["findings"] if one["gravity"] == "broken"]
    assert (broken, code) == ([], int(bool(told["findings"])))


def test_a_risk(launch: Launch, gpu_scope: MakeScope) -> None:
    """A container that a reload would harm is advice."""
    guard = launch(guard={"declare": False}).start()
    guard.await_state(gpu_scope().name, "at-risk")
    code, told = ask(guard)
    assert code == 1
    assert any("is at-risk" in one["text"] for one in told["findings"])


@pytest.fixture
def without_bus(node: Node) -> Iterator[Callable[[], None]]:
    """Return the way to take the node's bus away; it is back after the test."""

    def stop() -> None:
        node.run(["systemctl", "stop", "dbus.socket", "dbus.service"])

    yield stop
    node.run(["systemctl", "start", "dbus.socket"])


def test_without_a_bus(launch: Launch, without_bus: Callable[[], None]) -> None:
    """What is down is told with the reason, and that nothing can be declared is broken."""
    guard = launch().start()
    without_bus()
    until(lambda: down(guard).keys() >= BUS, 30, "the sources of the bus to be down")
    assert all(down(guard).values())
    code, told = ask(guard)
    assert code == 2
    assert "systemd does not answer" in told["findings"][0]["text"]


def test_metrics_that_cannot_be_had(launch: Launch) -> None:
    """Whoever asks Prometheus takes the node for unguarded: the daemon tells where they are missing, and why."""
    guard = launch(metrics={"listen": "unix:/run/nowhere/metrics.sock"})
    guard.spawn()
    until(lambda: any("no metrics endpoint" in one["text"] for one in ask(guard)[1]["findings"]), 30, "the finding")
