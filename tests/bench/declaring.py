"""What the declaring call itself costs a container: failed opens, and rules that a hook writes meanwhile."""

from __future__ import annotations

import json
import sys

from tests.bench.table import table
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import ROOT, Node
from tests.lab.prober import Prober

_WAYS = {"plain": "SetUnitProperties alone", "guard": "under the transient shield, as gpuguard does"}


def measure(node: Node, prober: Prober, tries: int) -> str:
    """Return the table: `tries` declarations each way, with a tight-loop opener and a hook that writes at random."""
    rows = []
    for how, name in _WAYS.items():
        scope = node.scope()
        hook.allow(scope.cgroup, GPU0)
        program = ["env", "-C", str(ROOT), sys.executable, "-m", "tests.e2e.declaring"]
        with prober.loop(scope.cgroup, GPU0) as loop:
            done = node.run([*program, f"/system.slice/{scope.name}", str(tries), how], timeout=300)
            report = loop.stop()
        scope.stop()
        result = json.loads(done.stdout)
        rows.append(
            [name, f"{report.denied} of {report.opens}", str(result["lost"]), str(result["during"])],
        )
    header = ("way", "failed opens", "hook's rule lost", "written during the call")
    return table(f"{tries} declarations", header, rows)
