"""How long opens fail, per trigger: without a guard, at the first loss under guard, and when it was declared before."""

from __future__ import annotations

import time
from typing import Callable

from tests.bench.opener import opening
from tests.bench.table import spread, table
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Gap, Prober
from tests.lab.scope import Scope

_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_CALL = ("busctl", "call", *_MANAGER, "SetUnitProperties", "sba(sv)")
_QUIET = 0.1  # seconds; for what comes after the trigger's end

TRIGGERS: dict[str, Callable[[Node, str], object]] = {
    "daemon-reload": lambda node, _: node.run(["systemctl", "daemon-reload"]),
    "daemon-reexec": lambda node, _: node.run(["systemctl", "daemon-reexec"]),
    "property, by systemctl": lambda node, scope: node.run(["systemctl", "set-property", scope, "CPUShares=512"]),
    "property, over the bus": lambda node, scope: node.run([*_CALL, scope, "true", "1", "CPUShares", "t", "512"]),
}


def measure(node: Node, prober: Prober, rounds: int) -> str:
    """Return the table: median and longest gap of a tight-loop opener in a fresh scope, of `rounds` each."""
    rows = []
    for name, pull in TRIGGERS.items():
        row = [name, _never(node, prober, pull)]
        for declare, state in ((False, "at-risk"), (True, "protected")):
            settings = {"declare": declare, "poll_interval": "5s"}
            with Gpuguard(node, guard=settings, backoff={"max_repairs": 1000}) as guard:
                guard.start()
                found = [_gaps(guard, prober, pull, state) for _ in range(rounds)]
            longest = [max(gap.length_us for gap in gaps) for gaps in found if gaps]
            row.append(f"{spread(longest)} ({len(longest)}/{rounds})")
        rows.append(row)
    header = ("trigger", "no guard", "first loss under guard", "declared before")
    title = f"Opens fail for: median, longest (in how many of {rounds} rounds at all; poll interval 5 s)"
    return table(title, header, rows)


def _scope(node: Node) -> Scope:
    scope = node.scope()
    hook.allow(scope.cgroup, GPU0)
    return scope


def _never(node: Node, prober: Prober, pull: Callable[[Node, str], object]) -> str:
    scope = _scope(node)
    pull(node, scope.name)
    time.sleep(_QUIET)
    answer = prober.open(scope.cgroup, GPU0)
    scope.stop()
    return "for ever" if answer.denied else "not at all"


def _gaps(guard: Gpuguard, prober: Prober, pull: Callable[[Node, str], object], state: str) -> tuple[Gap, ...]:
    scope = _scope(guard.node)
    guard.await_state(scope.name, state)
    if state == "at-risk":
        guard.await_rest()  # the quick rounds after a container's start would see a loss sooner than usual
    with opening(guard.node, prober, scope.cgroup) as loop:
        time.sleep(_QUIET)
        pull(guard.node, scope.name)
        until(lambda: prober.open(scope.cgroup, GPU0).allowed, 30, "the device")
        time.sleep(_QUIET)
        report = loop.stop()
    scope.stop()
    return report.gaps
