"""How long the very first loss lasts: gpuguard beside a C program that wakes, reads and writes, and a timer of 1 s.

On cgroup v1, by one opener, in the normal class (both at nice -20, where they may) and in SCHED_RR.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean, median, quantiles
from typing import Optional

from tests.bench import guards
from tests.bench.footprint import family
from tests.bench.losses import TRIGGERS, losses
from tests.bench.progress import tell
from tests.bench.table import table
from tests.lab.node import Node
from tests.lab.prober import Prober
from tests.lab.realtime import realtime

_TRIGGER = "daemon-reload"
_QUIET = 0.01  # seconds
_TURNS = 5  # by turns, so that noise meets all alike
_MOST = 30  # of the slow one
_COLUMNS = 10
_LIMIT = "C: fanotify, read, write"


@dataclass
class _Series:
    """Outages in µs, and the scheduling classes that the guard had."""

    lengths: list[float] = field(default_factory=list)
    standing: set[str] = field(default_factory=set)

    @property
    def seen(self) -> list[float]:
        """Those that the opener met."""
        return [length for length in self.lengths if length]


def measure(node: Node, prober: Prober, samples: int) -> str:
    """Return the table: `samples` losses of a device under each guard and in each class, by one opener."""
    why = guards.why_no_compiler()
    slow = _series(node, prober, [guards.TIMER], min(samples, _MOST))[guards.TIMER.name]
    rows = [_row(guards.TIMER.name, slow, None, None)]
    for priority in ("nice", "rr"):
        with ExitStack() as stack:
            if priority == "rr":
                stack.enter_context(realtime(node))
            rivals = [] if why else [guards.Guard(_LIMIT, guards.compiled(priority))]
            found = _series(node, prober, [*rivals, guards.ALONE, guards.TOGETHER], samples)
        rows += [_row(guard, series, found.get(_LIMIT), slow) for guard, series in found.items()]
    header = (
        "class",
        "guard",
        "losses seen",
        "median µs",
        "mean µs",
        "90 % below",
        "99 % below",
        "longest",
        "median of C's (want 2 at most)",
        "of the timer's mean, 1 in (want 1,000)",
    )
    title = f"First losses by {_TRIGGER}, cgroup v1, one opener"
    return table(title + (f"; no C program: {why}" if why else ""), header, rows)


def _series(node: Node, prober: Prober, guarding: list[guards.Guard], samples: int) -> dict[str, _Series]:
    found = {guard.name: _Series() for guard in guarding}
    turns = min(_TURNS, samples)
    for turn in range(turns):
        count = samples * (turn + 1) // turns - samples * turn // turns
        for guard in guarding:
            series = found[guard.name]
            tell(f"first-loss: {guard.name}, {len(series.lengths)} of {samples} {series.standing or ''}")
            scope = guards.scope_for(node, guard)
            with guard.start(node, scope) as pid:
                series.standing.add(guards.standing(family(pid)[:2][-1]) if pid else "")
                pull = TRIGGERS[_TRIGGER]
                series.lengths += losses(
                    node, prober, scope, guard.rule, pull, count, quiet=_QUIET, period=guard.period
                )
            scope.stop()
    return found


def _row(name: str, series: _Series, limit: Optional[_Series], slow: Optional[_Series]) -> list[str]:
    seen = series.seen
    cells = [", ".join(sorted(series.standing)), name, f"{len(seen)} of {len(series.lengths)}"]
    if len(seen) > 1:
        cuts = quantiles(seen, n=100, method="inclusive")
        figures = [median(seen), fmean(seen), cuts[89], cuts[98], max(seen)]
        cells += [f"{figure:,.0f}" for figure in figures]
        cells.append(f"{median(seen) / median(limit.seen):.2f}" if limit and limit.seen else "")
        cells.append(f"{fmean(slow.seen) / median(seen):,.0f}" if slow and slow.seen else "")
    return cells + [""] * (_COLUMNS - len(cells))
