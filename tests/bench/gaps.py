"""What a tight-loop opener sees of a reload: in a scope that gpuguard cured, and in one that systemd knew all of."""

from __future__ import annotations

import time
from statistics import fmean, median, quantiles

from tests.bench.opener import opening
from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import BASICS, Scope

_AROUND = 0.05  # seconds
_MOST = 10  # reloads for each gap that is wanted


def measure(node: Node, prober: Prober, wanted: int) -> str:
    """Return the table: `wanted` gaps at least in each of the scopes, by turns so that noise meets both alike."""
    known = node.scope(device_allow=[*BASICS, "/dev/char/195:0 rw"])
    cured = node.scope()
    hook.allow(cured.cgroup, GPU0)
    gaps: dict[str, list[float]] = {known.name: [], cured.name: []}
    with Gpuguard(node, guard={"declare": False}) as guard:
        guard.start()
        guard.await_state(cured.name, "at-risk")
        node.run(["systemctl", "daemon-reload"])
        for scope in (known, cured):
            guard.await_state(scope.name, "protected")
        deeds = guard.deeds()
        reloads = 0
        while min(map(len, gaps.values())) < wanted and reloads < wanted * _MOST:
            for scope in (known, cured):
                gaps[scope.name] += _reload(node, prober, scope)
            reloads += 1
        repairs = sum(guard.deeds().values()) - sum(deeds.values())
    for scope in (known, cured):
        scope.stop()
    rows = [_row("systemd knew the device from the start", gaps[known.name])]
    rows.append(_row("lost once, repaired and declared by gpuguard", gaps[cured.name]))
    if all(gaps.values()):
        ratios = [figure(gaps[cured.name]) / figure(gaps[known.name]) for figure in (median, fmean)]
        rows.append(["ratio (want 1.1 at most)", "", *(f"{ratio:.2f}" for ratio in ratios), "", ""])
    title = f"Gap of a reload, {reloads} reloads for each scope by turns; repairs meanwhile: {repairs:.0f}"
    return table(title, ("scope", "gaps", "median µs", "mean µs", "90 % below µs", "longest µs"), rows)


def _reload(node: Node, prober: Prober, scope: Scope) -> list[float]:
    with opening(node, prober, scope.cgroup) as loop:
        time.sleep(_AROUND)
        node.run(["systemctl", "daemon-reload"])
        until(lambda: prober.open(scope.cgroup, GPU0).allowed, 30, "the device")
        time.sleep(_AROUND)
        return [gap.length_us for gap in loop.stop().gaps]


def _row(name: str, lengths: list[float]) -> list[str]:
    figures: list[float] = []
    if len(lengths) > 1:
        figures = [median(lengths), fmean(lengths), quantiles(lengths, n=10)[-1], max(lengths)]
    return [name, str(len(lengths)), *(f"{figure:.0f}" for figure in figures), *[""] * (4 - len(figures))]
