"""Whether an open ever fails on cgroup v2 while a container's devices are declared, and once they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Callable

from tests.bench.crowd import Crowd
from tests.bench.opener import opening
from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab.node import Node
from tests.lab.prober import Prober

_AROUND = 0.05  # seconds

Pull = Callable[[Node, str, int], object]

TRIGGERS: dict[str, Pull] = {
    "daemon-reload": lambda node, _, __: node.run(["systemctl", "daemon-reload"]),
    "property change": lambda node, scope, turn: _set(node, scope, f"TasksMax={1000 + turn}"),
    "the declaring call, again": lambda node, scope, _: _set(node, scope, "DeviceAllow=/dev/char/195:0 rw"),
}


def measure(node: Node, prober: Prober, turns: int) -> str:
    """Return the table: opens and failed ones of a tight loop in a scope, `turns` of each trigger for each."""
    rows = [
        ["declared by gpuguard, from the first call on", *_declared(node, prober, turns)],
        ["systemd knew of the GPU from the start", *_known(node, prober, turns)],
        ["no guard", *_unguarded(node, prober)],
    ]
    header = ("scope", "gpuguard's first declaration", *(f"{turns} of: {name}" for name in TRIGGERS))
    title = "Failed opens of all opens on cgroup v2 (want 0 but in the last row)"
    return table(title, header, rows)


def _declared(node: Node, prober: Prober, turns: int) -> list[str]:
    with Crowd(node, 1) as crowd, Gpuguard(node, guard={"settle": "300ms"}) as guard:
        with opening(node, prober, crowd.cgroups[0]) as loop:
            guard.start()
            guard.await_state(crowd.names[0], "protected")
            time.sleep(_AROUND)
            first = loop.stop()
        return [f"{first.denied} of {first.opens}", *_pulled(node, prober, crowd, turns)]


def _known(node: Node, prober: Prober, turns: int) -> list[str]:
    with Crowd(node, 1, known=True) as crowd:
        return ["", *_pulled(node, prober, crowd, turns)]


def _unguarded(node: Node, prober: Prober) -> list[str]:
    """Pull each trigger once in a fresh scope, but not the one that gives the device back."""
    cells = []
    for name in list(TRIGGERS)[:2]:
        with Crowd(node, 1) as crowd:
            cells += _pulled(node, prober, crowd, 1, [name])
    return ["", *(f"{cell} (one)" for cell in cells), ""]


def _pulled(node: Node, prober: Prober, crowd: Crowd, turns: int, names: Sequence[str] = tuple(TRIGGERS)) -> list[str]:
    cells = []
    for pull in map(TRIGGERS.__getitem__, names):
        with opening(node, prober, crowd.cgroups[0]) as loop:
            time.sleep(_AROUND)
            for turn in range(turns):
                pull(node, crowd.names[0], turn)
            time.sleep(_AROUND)
            report = loop.stop()
        cells.append(f"{report.denied} of {report.opens}")
    return cells


def _set(node: Node, scope: str, setting: str) -> None:
    node.run(["systemctl", "set-property", "--runtime", scope, setting])
