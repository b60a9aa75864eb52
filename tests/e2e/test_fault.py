"""The fault itself, without gpuguard: containers lose their devices when systemd rewrites their control groups."""

from __future__ import annotations

from typing import Callable

import pytest

from tests.lab.containers import Container, Engine
from tests.lab.devices import CTL, GPU0, UVM
from tests.lab.prober import Prober

TRIGGERS: dict[str, Callable[[Container], object]] = {
    "daemon-reload": lambda container: container.node.run(["systemctl", "daemon-reload"]),
    "daemon-reexec": lambda container: container.node.run(["systemctl", "daemon-reexec"]),
    "set-property": lambda container: container.node.run(
        ["systemctl", "set-property", container.scope, "CPUShares=512"]
    ),
    "update": lambda container: container.update_cpu_shares(512),
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_container_loses_its_devices(engine: Engine, prober: Prober, trigger: str) -> None:
    """Every device that a running container was given is denied to it after each of the triggers."""
    devices = (GPU0, CTL, UVM)
    container = engine.run("trainer", devices)
    before = {device.path: str(prober.open(container.cgroup, device)) for device in devices}

    TRIGGERS[trigger](container)
    container.node.carried_out()

    after = {device.path: str(prober.open(container.cgroup, device)) for device in devices}
    assert set(before.values()) == {"ENXIO"}
    assert set(after.values()) == {"EPERM"}
    assert "Operation not permitted" in container.exec(["cat", GPU0.path]).stderr
