"""Which devices are guarded on this host, and how they are called."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from gpuguard.config import CustomDevices, Devices
from gpuguard.errors import CgroupUnreadableError
from gpuguard.guard.devices import GuardedDevices
from gpuguard.kernel.procfs import Host
from gpuguard.model.rule import Rule
from gpuguard.model.unit import DeviceAllow
from tests.model.looks import declaration, rules

DRIVERS = "Character devices:\n  1 mem\n195 nvidia\n510 nvidia-uvm\n555 kgpu\n"


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """Return a host with NVIDIA's driver and no device nodes."""
    (tmp_path / "proc").mkdir()
    (tmp_path / "dev").mkdir()
    (tmp_path / "proc" / "devices").write_text(DRIVERS)
    return Host(tmp_path / "proc", tmp_path / "dev")


def devices(host: Host, settings: Devices) -> GuardedDevices:
    """Return what is guarded, refreshed once."""
    guarded = GuardedDevices(settings, host)
    guarded.refresh()
    return guarded


def told(guarded: GuardedDevices, *lines: str) -> list[bool]:
    """Tell of each rule whether it is guarded."""
    return [guarded(Rule.parse(line)) for line in lines]


def test_built_in_classes(host: Host) -> None:
    """NVIDIA's fixed major and those that its drivers have in /proc/devices are guarded, others are not."""
    guarded = devices(host, Devices())
    assert told(guarded, "c 195:0 rw", "c 510:0 rw", "c 555:0 rw", "c 1:3 rw", "c 195:0 m") == [
        True,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("mark", [{"majors": (555,)}, {"drivers": ("kgpu*",)}])
def test_classes_of_the_site(host: Host, mark: dict[str, tuple[str, ...]]) -> None:
    """A class of the site's own is guarded by its majors or its drivers' names."""
    custom = CustomDevices(name="kgpu", **mark)  # type: ignore[arg-type]  # mypy does not see which key it is
    guarded = devices(host, Devices(classes=(), custom=(custom,)))
    assert told(guarded, "c 555:7 rw", "c 195:0 rw") == [True, False]


def test_a_class_by_its_nodes(host: Host, tmp_path: Path) -> None:
    """A class may be known by its device nodes, which give their majors and their names."""
    try:
        os.mknod(tmp_path / "dev" / "kgpu0", stat.S_IFCHR, os.makedev(555, 0))
    except PermissionError:
        pytest.skip("needs root to make a device node")
    guarded = devices(host, Devices(classes=(), custom=(CustomDevices(name="kgpu", nodes=("/dev/kgpu*",)),)))
    assert told(guarded, "c 555:0 rw", "c 555:1 rw", "c 1:3 rw") == [True, True, False]
    assert guarded.node_of(Rule.parse("c 555:0 rw")) == "/dev/kgpu0"
    assert guarded.node_of(Rule.parse("c 555:1 rw")) is None
    assert guarded.node_of(Rule.parse("c 555:* rw")) is None


def test_a_driver_that_comes_later(host: Host, tmp_path: Path) -> None:
    """A refresh sees a driver that was loaded meanwhile."""
    guarded = devices(host, Devices(classes=(), custom=(CustomDevices(name="new", drivers=("new",)),)))
    assert told(guarded, "c 600:0 rw") == [False]
    (tmp_path / "proc" / "devices").write_text("Character devices:\n600 new\n")
    guarded.refresh()
    assert told(guarded, "c 600:0 rw") == [True]


@pytest.mark.invariant(4)
def test_a_refresh_that_fails_changes_nothing(host: Host, tmp_path: Path) -> None:
    """When /proc/devices cannot be read what was guarded stays so."""
    guarded = devices(host, Devices())
    (tmp_path / "proc" / "devices").unlink()
    with pytest.raises(CgroupUnreadableError):
        guarded.refresh()
    assert told(guarded, "c 195:0 rw", "c 510:0 rw") == [True, True]


def test_merge_speaks_the_systemd_of_the_node(host: Host) -> None:
    """A new systemd takes numbers from the path's text; an old one wants a node, and without one nothing is sent."""
    guarded = devices(host, Devices())
    wanted = sorted(rules("c 195:0 rw"), key=str)
    assert guarded.merge(252, declaration(), wanted) == ((DeviceAllow("/dev/char/195:0", wanted[0].access),), ())
    assert guarded.merge(239, declaration(), wanted) == ((), tuple(wanted))
