"""A tight-loop opener's losses: what a trigger takes away again and again, and how long until it is back."""

from __future__ import annotations

import random
import time
from typing import Callable

from tests.bench.opener import opening
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import Scope

Pull = Callable[[Node, str, int], object]

_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_CALL = ("busctl", "call", *_MANAGER, "SetUnitProperties", "sba(sv)")

TRIGGERS: dict[str, Pull] = {
    "daemon-reload": lambda node, _, __: node.run(["systemctl", "daemon-reload"]),
    "daemon-reexec": lambda node, _, __: node.run(["systemctl", "daemon-reexec"]),
    "property, by systemctl": lambda node, scope, turn: node.run(
        ["systemctl", "set-property", "--runtime", scope, f"CPUShares={512 + turn}"]
    ),
    "property, over the bus": lambda node, scope, turn: node.run(
        [*_CALL, scope, "true", "1", "CPUShares", "t", str(512 + turn)]
    ),
}

_PATIENCE = 30.0


def losses(  # noqa: PLR0917 - a series has all of these
    node: Node, prober: Prober, scope: Scope, rule: str, pull: Pull, count: int, *, quiet: float, period: float = 0.0
) -> list[float]:
    """Return for how many microseconds opens failed at each of `count` pulls, 0 where no open met a gap.

    `rule`: what must be in the kernel's list before the next pull; `quiet`: seconds between two pulls;
    `period`: what the guard does something in, so that pulls come at any time of it.
    """
    kernel = scope.cgroup / "devices.list"
    begun = []
    with opening(node, prober, scope.cgroup) as loop:
        time.sleep(quiet)
        for turn in range(count):
            time.sleep(random.uniform(0, period))  # noqa: S311 - not for secrets
            begun.append(time.monotonic_ns())
            pull(node, scope.name, turn)
            time.sleep(quiet)
            until(lambda: rule in kernel.read_text(encoding="ascii"), _PATIENCE, f"{rule} to be back")
        time.sleep(quiet)
        gaps = loop.stop().gaps
    ends = [*begun[1:], time.monotonic_ns()]
    return [sum(gap.length_us for gap in gaps if start <= gap.start_ns < end) for start, end in zip(begun, ends)]
