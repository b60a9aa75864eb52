"""How long opens fail, per trigger and guard, on cgroup v1: none, the usual practice, gpuguard, the limits."""

from __future__ import annotations

import time

from tests.bench import guards
from tests.bench.guards import Guard
from tests.bench.losses import TRIGGERS, Pull, losses
from tests.bench.progress import tell
from tests.bench.table import spread, table
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.prober import Prober

_QUIET = 0.1  # seconds; a trigger's command may end before what it triggers


def measure(node: Node, prober: Prober, rounds: int) -> str:
    """Return the table: median and longest time that opens fail, of `rounds` pulls of each trigger for each guard."""
    compiler = not guards.why_no_compiler()
    guarding = [
        guards.NOBODY,
        guards.TIMER,
        guards.CLOCK,
        guards.SIGNALS,
        guards.SENTINEL,
        guards.TOGETHER,
        guards.DECLARED,
        guards.SHIELD,
        guards.KNOWN,
        *([Guard("C: fanotify, read, write", guards.compiled("nice"))] if compiler else []),
    ]
    rows = [[guard.name, *_cells(node, prober, guard, rounds)] for guard in guarding]
    title = f"Opens fail for: median, longest (in how many of {rounds} rounds at all), usual scheduling class"
    return table(title, ("guard", *TRIGGERS), rows)


def _cells(node: Node, prober: Prober, guard: Guard, rounds: int) -> list[str]:
    tell(f"outages: {guard.name}")
    if not guard.heals:
        return [_never(node, prober, guard, pull) for pull in TRIGGERS.values()]
    scope = guards.scope_for(node, guard)
    cells = []
    with guard.start(node, scope):
        for pull in TRIGGERS.values():
            found = losses(node, prober, scope, guard.rule, pull, rounds, quiet=_QUIET, period=guard.period)
            seen = [length for length in found if length]
            cells.append(f"{spread(seen)} ({len(seen)}/{rounds})")
    scope.stop()
    return cells


def _never(node: Node, prober: Prober, guard: Guard, pull: Pull) -> str:
    scope = guards.scope_for(node, guard)
    pull(node, scope.name, 0)
    time.sleep(_QUIET)
    answer = prober.open(scope.cgroup, GPU0)
    scope.stop()
    return "for ever" if answer.denied else "not at all"
