"""The fault itself, without gpuguard: containers lose their devices when systemd rewrites their control groups."""

from __future__ import annotations

import pytest

from tests.lab.containers import Engine
from tests.lab.devices import CTL, GPU0, UVM
from tests.lab.prober import Prober

TRIGGERS = {
    "daemon-reload": ["systemctl", "daemon-reload"],
    "daemon-reexec": ["systemctl", "daemon-reexec"],
    "set-property": ["systemctl", "set-property", "{scope}", "CPUShares=512"],
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_container_loses_its_devices(engine: Engine, prober: Prober, trigger: str) -> None:
    """Every device that a running container was given is denied to it after each of the triggers."""
    container = engine.run("trainer", [GPU0, CTL, UVM])
    before = {device.path: str(prober.open(container.cgroup, device)) for device in (GPU0, CTL, UVM)}

    engine.node.run([word.format(scope=container.scope) for word in TRIGGERS[trigger]])

    after = {device.path: str(prober.open(container.cgroup, device)) for device in (GPU0, CTL, UVM)}
    assert set(before.values()) == {"ENXIO"}
    assert set(after.values()) == {"EPERM"}
