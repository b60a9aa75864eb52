"""Docker and Podman in the node give containers what they were asked for, as on a GPU node."""

from __future__ import annotations

import pytest

from tests.lab import hook
from tests.lab.containers import Engine
from tests.lab.devices import CTL, FUSE, GPU0, GPU1, UVM
from tests.lab.errors import LabError
from tests.lab.poll import until
from tests.lab.prober import Prober


def test_container_has_the_devices_it_was_given(engine: Engine, prober: Prober) -> None:
    """A container can open each device that it was given, and no other."""
    container = engine.run("trainer", [GPU0, CTL, UVM, FUSE])
    answers = {device.path: prober.open(container.cgroup, device) for device in (GPU0, GPU1, CTL, UVM, FUSE)}
    assert {path for path, answer in answers.items() if answer.allowed} == {d.path for d in (GPU0, CTL, UVM, FUSE)}
    assert {path for path, answer in answers.items() if answer.denied} == {GPU1.path}


def test_container_is_a_scope_of_systemd(engine: Engine) -> None:
    """The engine's container runs in a systemd scope named after its id, with its first process in that group."""
    container = engine.run("trainer")
    assert len(container.id) == 64
    shown = engine.node.run(["systemctl", "show", "--property=ActiveState", "--value", container.scope])
    assert shown.stdout.strip() == "active"
    inside = engine.node.run(["cat", f"/proc/{container.pid}/cgroup"]).stdout
    assert any(
        line.endswith(f"/{container.scope}")
        for line in inside.splitlines()
        if line.startswith("0::") or ":devices:" in line
    )


def test_program_in_the_container_says_what_its_user_would_see(engine: Engine) -> None:
    """A program in the container opens its device and fails for want of a driver alone."""
    container = engine.run("trainer", [GPU0])
    assert "No such device or address" in container.exec(["cat", GPU0.path]).stderr


def test_hook_gives_a_device_behind_systemds_back(engine: Engine, prober: Prober) -> None:
    """A rule written as NVIDIA's hook does opens the device, is no part of the unit, and is lost at a reload."""
    container = engine.run("trainer")
    hook.allow(container.cgroup, GPU0)
    assert prober.open(container.cgroup, GPU0).allowed
    declared = engine.node.run(["systemctl", "show", "--property=DeviceAllow", container.scope]).stdout
    assert "195" not in declared
    engine.node.run(["systemctl", "daemon-reload"])
    assert prober.open(container.cgroup, GPU0).denied


def test_unfiltered_container_may_open_everything(engine: Engine, prober: Prober) -> None:
    """A container without a device filter can open a device that nobody gave it, before a reload and after."""
    container = engine.run("trainer", args=engine.unfiltered)
    assert prober.open(container.cgroup, GPU0).allowed
    engine.node.run(["systemctl", "daemon-reload"])
    assert prober.open(container.cgroup, GPU0).allowed


def test_update_keeps_the_container_running(engine: Engine) -> None:
    """Changing the CPU weight through the engine takes effect on the running container."""
    container = engine.run("trainer")
    container.update_cpu_shares(512)
    shown = engine.node.run(["systemctl", "show", "--property=CPUShares,CPUWeight", container.scope]).stdout.split()
    assert {"CPUShares=512", "CPUWeight=20"} & set(shown)  # on v1, on v2
    assert container.exec(["true"]).returncode == 0


def test_stop_leaves_no_group(engine: Engine) -> None:
    """A stopped container is gone: its name is free and its group is removed."""
    container = engine.run("trainer")
    container.stop()
    until(lambda: not container.cgroup.exists(), 20, "the end of the scope")
    engine.run("trainer").stop()


def test_a_refused_container_is_an_error(engine: Engine) -> None:
    """What the engine says when it refuses a container is in the error."""
    with pytest.raises(LabError, match="bogus"):
        engine.run("trainer", args=["--bogus"])
