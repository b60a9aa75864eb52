"""Tests for the imitation of NVIDIA's toolkit and driver: what a container gets from it, and loses without a guard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuguard.model.majors import Majors
from tests.lab.containers import Container, Docker, Engine
from tests.lab.devices import CTL, GPU0, GPU1, NVIDIA, UVM, Device
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.nvidia import hook, request, toolkit
from tests.lab.nvidia.driver import MODESET, UVM_TOOLS, Driver, Inventory, Mig, uuid
from tests.lab.nvidia.runtime import HOOK
from tests.lab.prober import Prober

ALL = (GPU0, GPU1, CTL, UVM, UVM_TOOLS, MODESET)
VOLUME = "--volume=/dev/null:/var/run/nvidia-container-devices"


@pytest.fixture
def driver(node: Node) -> Iterator[Driver]:
    """Return the node's driver with the toolkit."""
    toolkit.install(node)
    with Driver(node) as made:
        yield made


def given(prober: Prober, container: Container) -> list[Device]:
    """Return which of a host's devices a container can open."""
    return [device for device in ALL if prober.open(container.cgroup, device).allowed]


def test_what_is_asked_for(engine: Engine, prober: Prober, driver: Driver) -> None:
    """A container opens what it has asked for, by number or UUID, and that alone."""
    for number, visible in enumerate(("0", uuid(0), "0,")):
        container = engine.run(f"asked{number}", args=toolkit.options(engine, visible=visible))
        assert given(prober, container) == [GPU0, CTL, UVM, UVM_TOOLS]
        assert container.exec(["/bin/ls", "/dev"]).stdout.split().count("nvidia0") == 1
        done = container.exec(["/bin/sh", "-c", ": <>/dev/nvidia0"])
        assert "No such device or address" in done.stderr
    graphical = toolkit.options(engine, "--env=NVIDIA_DRIVER_CAPABILITIES=all", visible="all")
    assert given(prober, engine.run("everything", args=graphical)) == list(ALL)
    assert driver.node is engine.node


@pytest.mark.usefixtures("driver")
def test_the_fault(engine: Engine, prober: Prober) -> None:
    """A reload of systemd takes what the hook gave: it is not systemd's."""
    container = engine.run("faulty", args=toolkit.options(engine, visible="0"))
    spec = _spec(engine.node, container)
    assert spec["hooks"]["prestart"][-1]["path"] == HOOK
    assert given(prober, container) == [GPU0, CTL, UVM, UVM_TOOLS]
    engine.node.run(["systemctl", "daemon-reload"])
    assert given(prober, container) == []
    assert "not permitted" in container.exec(["/bin/sh", "-c", ": <>/dev/nvidia0"]).stderr


@pytest.mark.usefixtures("driver")
def test_gpus_of_docker(docker: Docker, prober: Prober) -> None:
    """Docker's own --gpus finds the hook and puts it, and the request, into the specification."""
    container = docker.run("gpus", args=["--gpus=device=1"])
    assert given(prober, container) == [GPU1, CTL, UVM, UVM_TOOLS]
    spec = _spec(docker.node, container)
    assert "NVIDIA_VISIBLE_DEVICES=1" in spec["process"]["env"]
    assert [known["path"] for known in spec["hooks"]["prestart"] if "nvidia" in known["path"]] == [HOOK]


def test_the_mounts(engine: Engine, driver: Driver) -> None:
    """The nodes are the host's, mounted over files in the container's mount namespace, and not in its spec."""
    container = engine.run("mounts", args=toolkit.options(engine, visible="0"))
    mounts = engine.node.path(f"/proc/{container.pid}/mountinfo").read_text().splitlines()
    [line] = [line.split() for line in mounts if " /dev/nvidia0 " in line]
    assert line[3] == "/nvidia0"
    assert {"ro", "nosuid", "noexec"} <= set(line[5].split(","))
    host = driver.node.path("/dev/nvidia0").stat()
    assert line[2] == f"{host.st_dev >> 8 & 0xFFF}:{host.st_dev & 0xFF}"
    assert "/dev/nvidia0" not in str(_spec(engine.node, container)["linux"].get("devices"))


@pytest.mark.usefixtures("driver")
def test_what_gets_nothing(engine: Engine, prober: Prober) -> None:
    """Nothing is given to who does not ask, nor to whom the toolkit refuses it; an unknown GPU starts nothing."""
    for visible in ("void", ""):
        container = engine.run(f"without{visible}", args=toolkit.options(engine, visible=visible))
        assert given(prober, container) == []
    assert given(prober, engine.run("no-hook", args=["--env=NVIDIA_VISIBLE_DEVICES=all"])) == []
    assert given(prober, engine.run("no-gpu", args=toolkit.options(engine, visible="none"))) == [CTL, UVM, UVM_TOOLS]
    with pytest.raises(LabError):  # on v2 Podman passes on another complaint of runc's
        engine.run("unknown", args=toolkit.options(engine, visible="7"))
    engine.command("rm", "--force", "unknown")
    toolkit.configure(engine.node, {toolkit.ENVVAR: False})
    assert given(prober, engine.run("refused", args=toolkit.options(engine, visible="0"))) == []
    toolkit.configure(engine.node, {toolkit.NO_CGROUPS: True})
    no_rules = engine.run("no-cgroups", args=toolkit.options(engine, visible="0"))
    assert given(prober, no_rules) == []
    assert "nvidia0" in no_rules.exec(["/bin/ls", "/dev"]).stdout


@pytest.mark.usefixtures("driver")
def test_volume_mounts(engine: Engine, prober: Prober) -> None:
    """A request by mounts counts where config.toml says so, and then before the environment."""
    asked = toolkit.options(engine, f"{VOLUME}/1", visible="0")
    assert given(prober, engine.run("by-env", args=asked)) == [GPU0, CTL, UVM, UVM_TOOLS]
    toolkit.configure(engine.node, {toolkit.VOLUMES: True, toolkit.ENVVAR: False})
    assert given(prober, engine.run("by-mount", args=asked)) == [GPU1, CTL, UVM, UVM_TOOLS]


def test_the_driver_changes(node: Node, driver: Driver) -> None:
    """A driver that is loaded anew has other majors and nodes, for whoever looks in the node."""
    assert _majors(node).names("c", 195) == {"nvidia", "nvidiactl", "nvidia-modeset"}
    mig = (Mig(0, 1), Mig(0, 2, 1))
    driver.load(Inventory((0, 1, 2), uvm=511, caps=237, mig=mig, imex=508, channels=(0, 2047), name="nvidia-frontend"))
    assert _majors(node).names("c", 510) == frozenset()
    assert _majors(node).names("c", 511) == {"nvidia-uvm"}
    assert "nvidia-frontend" in _majors(node).names("c", 195)
    numbers = node.run(["stat", "--format=%t:%T", "/dev/nvidia2", "/dev/nvidia-uvm"]).stdout.split()
    assert numbers == ["c3:2", "1ff:0"]
    assert node.path("/dev/nvidia-caps-imex-channels/channel2047").is_char_device()
    assert uuid(2) in node.path("/proc/driver/nvidia/gpus/0000:12:00.0/information").read_text()
    assert node.path("/dev/nvidia-caps/nvidia-cap12").is_char_device()
    spec = {"process": {"env": ["NVIDIA_VISIBLE_DEVICES=0:1", "NVIDIA_IMEX_CHANNELS=2047"]}}
    control = ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
    capabilities = ["/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap23"]
    asked = request.nodes(spec, {}, node.path("/proc"))
    assert asked == [*control, "/dev/nvidia0", *capabilities, "/dev/nvidia-caps-imex-channels/channel2047"]


def test_afterwards(node: Node) -> None:
    """The driver leaves the node as it was."""
    before = node.path("/proc/devices").read_text(), sorted(node.path("/dev").iterdir())
    with Driver(node) as driver:
        driver.load(Inventory((0, 1, 2), imex=508, channels=(1,)))
    assert node.path("/proc/devices").read_text() == before[0]
    names = {path.name for path in node.path("/dev").glob("nvidia?*") if path.is_char_device()}
    assert names == {Path(device.path).name for device in NVIDIA}
    assert not node.path("/proc/driver/nvidia").exists()


def test_settings() -> None:
    """The hook reads keys and tables of config.toml; what it does not need it passes over."""
    text = '#x\nswarm-resource = "A"\n[nvidia-container-cli]\n#y = "z"\nno-cgroups = true\nenvironment = []\n'
    assert hook.settings(text) == {"swarm-resource": "A", "nvidia-container-cli.no-cgroups": True}


def _majors(node: Node) -> Majors:
    return Majors.parse(node.run(["cat", "/proc/devices"]).stdout)


def _spec(node: Node, container: Container) -> dict[str, Any]:
    [path] = [
        *node.path("/run").glob(f"**/{container.id}/config.json"),
        *node.path("/var/lib/lab-podman").glob(f"**/{container.id}/userdata/config.json"),
    ]
    spec: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return spec
