"""A container as gpuguard has to see it, and assertions that what it loses comes back and stays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Optional

from tests.e2e import gate
from tests.e2e.gpuguard import Gpuguard
from tests.lab.containers import Container
from tests.lab.devices import GPU0, GPU1
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober


@dataclass(frozen=True)
class Payload:
    """A container as gpuguard has to see it."""

    scope: str
    cgroup: Path
    runtime: str
    id: str
    name: Optional[str] = None
    namespace: Optional[str] = None
    pod: Optional[str] = None

    @classmethod
    def of(
        cls, container: Container, runtime: str, namespace: Optional[str] = None, pod: Optional[str] = None
    ) -> Payload:
        """Return one of an engine's."""
        return cls(container.scope, container.cgroup, runtime, container.id, container.name, namespace, pod)


def lose(node: Node, payload: Payload) -> None:
    """Take the GPU away; no signal tells of it. On v2 systemd is made to forget it."""
    if node.mode == "v1":
        (payload.cgroup / "devices.deny").write_text(f"{GPU0.rule} rwm", encoding="ascii")
    else:
        gate.take_away(node, payload.scope, GPU0)


def assert_recognised(guard: Gpuguard, payload: Payload) -> None:
    """Assert that gpuguard knows who it is and what it was given, and nothing else of it."""
    [found] = guard.status().values()
    wanted = {key: getattr(payload, key) for key in ("scope", "runtime", "id", "name", "namespace", "pod")}
    assert {key: found[key] for key in wanted} == wanted
    assert [device["device"] for device in found["devices"]] == [GPU0.rule]


def assert_healed(guard: Gpuguard, prober: Prober, payload: Payload, *, state: str = "protected") -> None:
    """Take the GPU away twice, by hand and by a reload: it comes back, and nothing else with it."""
    node = guard.node
    guard.await_state(payload.scope, state, container=payload.id)
    lose(node, payload)
    assert prober.denied(payload.cgroup, [GPU0], within=20.0) == []
    guard.await_state(payload.scope, state, container=payload.id)
    node.run(["systemctl", "daemon-reload"])
    assert prober.denied(payload.cgroup, [GPU0], within=20.0) == []
    guard.await_state(payload.scope, state, container=payload.id)
    assert prober.open(payload.cgroup, GPU1).denied


def assert_done_by(guard: Gpuguard, *methods: str) -> None:
    """Assert that it was done in these ways, and that nothing failed."""
    for method in methods:
        until(partial(guard.total, "gpuguard_repairs_total", method=method, result="ok"), 20, f"a deed: {method}")
    for method in {"write", "declare"} - set(methods):
        assert guard.total("gpuguard_repairs_total", method=method, result="ok") == 0, method
    assert guard.total("gpuguard_repairs_total", result="failed") == 0


def usual(node: Node) -> tuple[str, ...]:
    """Return how a container that systemd manages is healed and protected."""
    return ("write", "declare") if node.mode == "v1" else ("declare",)
