"""What tests of a first start after the loss share: how a container loses its devices, and what it has of them then."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.gpuguard import SETTLE, Gpuguard
from tests.lab.containers import Container
from tests.lab.devices import CTL, GPU0, GPU1, UVM, Device
from tests.lab.nvidia.driver import UVM_TOOLS
from tests.lab.prober import Prober

ASKED = (GPU0, CTL, UVM, UVM_TOOLS)
"""What the hook gives to who asks for GPU 0 and names no capabilities."""
GIVEN = (GPU0, CTL, UVM)
"""What --device is used for here."""
MARGIN = 3 * SETTLE + 1.0  # seconds, for what is learnt late


def lose(prober: Prober, container: Container, devices: Sequence[Device]) -> None:
    """Have systemd take a container's devices away."""
    assert prober.denied(container.cgroup, devices) == []
    container.node.run(["systemctl", "daemon-reload"])
    assert prober.denied(container.cgroup, devices) == [device.path for device in devices]


def entitled(guard: Gpuguard, container: Container) -> dict[str, str]:
    """Return what a container is entitled to, and how that is known."""
    known = guard.status()[container.scope]
    return {device["device"]: device["entitled_by"] for device in known["devices"]}


def assert_cured(guard: Gpuguard, prober: Prober, container: Container, devices: Sequence[Device], source: str) -> None:
    """Assert that a container has these devices of its host's, no others, and keeps them, and how that is known."""
    if container.node.mode == "v2":
        source = "ledger"
    assert entitled(guard, container) == {device.rule: source for device in devices}
    for _ in range(2):
        allowed = [
            device for device in (GPU0, GPU1, CTL, UVM, UVM_TOOLS) if prober.open(container.cgroup, device).allowed
        ]
        assert set(allowed) == set(devices)
        container.node.run(["systemctl", "daemon-reload"])


def explain(guard: Gpuguard, container: Container) -> dict[str, Any]:
    """Return what `gpuguard explain --json` says."""
    done = guard.run("explain", "--json", container.scope)
    assert done.returncode == 0, done.stderr
    explained: dict[str, Any] = json.loads(done.stdout)
    return explained


def bundle(container: Container) -> Path:
    """Return the file of a container's specification, seen from outside."""
    root = container.node.path("/")
    patterns = ("run/**/{}/config.json", "var/lib/lab-podman/**/{}/userdata/config.json")
    [found] = [path for pattern in patterns for path in root.glob(pattern.format(container.id))]
    return found
