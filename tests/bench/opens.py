"""Whether an open ever fails while a container's devices are declared, once they are, and under a permanent shield."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Callable

from gpuguard.kernel.devices_v1 import SHIELD
from tests.bench.crowd import Crowd
from tests.bench.opener import opening
from tests.bench.progress import tell
from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober, Report

_AROUND = 0.05  # seconds
_PACE = 1.0  # of reloads: 20 of them are more than a million opens
_PATIENCE = 30.0
_RELOAD = "daemon-reload"

Pull = Callable[[Node, str, int], object]

TRIGGERS: dict[str, Pull] = {
    _RELOAD: lambda node, _, __: node.run(["systemctl", "daemon-reload"]),
    "property change": lambda node, scope, turn: _set(node, scope, f"TasksMax={1000 + turn}"),
    "the declaring call, again": lambda node, scope, _: _set(node, scope, "DeviceAllow=/dev/char/195:0 rw"),
}


def measure(node: Node, prober: Prober, turns: int) -> str:
    """Return the table: opens and failed ones of a tight loop in a scope, `turns` of each trigger for each."""
    rows = [["declared by gpuguard, from the first call on", *_guarded(node, prober, turns, {})]]
    if node.mode == "v1":
        rows.append(["the same under a permanent shield", *_guarded(node, prober, turns, {"shield": True})])
    rows += [
        ["systemd knew of the GPU from the start", *_known(node, prober, turns)],
        ["no guard", *_unguarded(node, prober)],
    ]
    header = ("scope", "gpuguard's first declaration", *(f"{turns} of: {name}" for name in TRIGGERS))
    want = "under the shield" if node.mode == "v1" else "but in the last row"
    return table(f"Failed opens of all opens on cgroup {node.mode} (want 0 {want})", header, rows)


def _guarded(node: Node, prober: Prober, turns: int, settings: Mapping[str, object]) -> list[str]:
    tell(f"opens: {settings or 'declared'}")
    with Crowd(node, 1) as crowd, Gpuguard(node, guard={"settle": "300ms", **settings}) as guard:
        with opening(node, prober, crowd.cgroups[0]) as loop:
            guard.start()
            guard.await_state(crowd.names[0], "protected")
            if settings:
                shield = crowd.cgroups[0] / SHIELD
                until(shield.exists, _PATIENCE, "the shield")
            time.sleep(_AROUND)
            first = loop.stop()
        return [_cell(first), *_pulled(node, prober, crowd, turns)]


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
    for name in names:
        pull = TRIGGERS[name]
        with opening(node, prober, crowd.cgroups[0]) as loop:
            time.sleep(_AROUND)
            for turn in range(turns):
                due = time.monotonic() + (_PACE if name == _RELOAD else 0)
                pull(node, crowd.names[0], turn)
                time.sleep(max(0, due - time.monotonic()))
            time.sleep(_AROUND)
            cells.append(_cell(loop.stop()))
    return cells


def _cell(report: Report) -> str:
    return f"{report.denied:,} of {report.opens:,}"


def _set(node: Node, scope: str, setting: str) -> None:
    node.run(["systemctl", "set-property", "--runtime", scope, setting])
