"""Which events concern guarded devices."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.device_classes import BUILT_IN, DeviceClass
from gpuguard.model.device_event import ACTIONS, DeviceEvent, device_event

NVIDIA = [BUILT_IN["nvidia"]]
PCI = "/devices/pci0000:00/0000:00:03.0"


def uevent(action: str, devpath: str, subsystem: str, **more: str) -> dict[str, str]:
    """Return the properties of an event."""
    return {"ACTION": action, "DEVPATH": devpath, "SUBSYSTEM": subsystem, **more, "SEQNUM": "1"}


@pytest.mark.parametrize(
    ("properties", "driver"),
    [
        (uevent("add", "/module/nvidia", "module"), "nvidia"),
        (uevent("remove", "/module/nvidia_uvm", "module"), "nvidia_uvm"),
        (uevent("bind", PCI, "pci", DRIVER="nvidia", PCI_ID="10DE:2330"), "nvidia"),
        (uevent("unbind", PCI, "pci", PCI_ID="10DE:2330"), ""),
        (uevent("remove", PCI, "pci", PCI_ID="10DE:2330"), ""),
        (uevent("add", "/devices/virtual/x/nvidia0", "x", MAJOR="195", MINOR="0", DEVNAME="x0"), ""),
        (uevent("add", "/devices/virtual/x/y", "x", MAJOR="240", MINOR="1", DEVNAME="nvidia-caps/nvidia-cap1"), ""),
        (uevent("add", "/module/nouveau", "module"), None),
        (uevent("add", "/module/nvme", "module"), None),
        (uevent("bind", PCI, "pci", DRIVER="nvme", PCI_ID="144D:A808"), None),
        (uevent("add", "/devices/virtual/block/x", "block", MAJOR="195", MINOR="0", DEVNAME="x0"), None),
        (uevent("move", "/module/nvidia", "module"), None),
        (uevent("online", PCI, "pci", PCI_ID="10DE:2330"), None),
        (uevent("add", "/bus/pci/drivers/nvidia", "drivers"), None),
        ({}, None),
    ],
)
def test_nvidia(properties: dict[str, str], driver: Optional[str]) -> None:
    """Its modules, its PCI devices with or without a driver, and its nodes; nobody else's."""
    event = device_event(properties, NVIDIA)
    if driver is None:
        assert event is None
    else:
        assert event == DeviceEvent(properties["ACTION"], properties["DEVPATH"], properties["SUBSYSTEM"], driver)


@pytest.mark.parametrize(
    ("name", "properties"),
    [
        ("amd", uevent("add", "/module/amdgpu", "module")),
        ("amd", uevent("add", "/devices/virtual/kfd/kfd", "kfd", MAJOR="234", MINOR="0", DEVNAME="kfd")),
        ("amd", uevent("add", f"{PCI}/drm/renderD128", "drm", MAJOR="226", MINOR="128", DEVNAME="dri/renderD128")),
        ("habana", uevent("change", f"{PCI}/accel/accel0", "accel", MAJOR="261", DEVNAME="accel/accel0")),
        ("habana", uevent("bind", PCI, "pci", DRIVER="habanalabs", PCI_ID="1DA3:1020")),
        ("ascend", uevent("add", "/devices/virtual/devdrv-class/davinci0", "devdrv-class", DEVNAME="davinci0")),
        ("infiniband", uevent("add", "/x/uverbs0", "infiniband_verbs", MAJOR="231", DEVNAME="infiniband/uverbs0")),
        ("infiniband", uevent("add", "/module/mlx5_ib", "module")),
    ],
)
def test_other_classes(name: str, properties: dict[str, str]) -> None:
    """Each class has events of its own, which are no other's."""
    assert device_event(properties, [BUILT_IN[name]]) is not None
    others = [known for known in BUILT_IN.values() if known.name != name]
    assert device_event(properties, others) is None


def test_a_class_of_the_site() -> None:
    """What a site guards by major, driver or node is seen by these; what has no driver matches no pattern for one."""
    site = [DeviceClass("kgpu", majors=frozenset({555}), drivers=("*",), nodes=("/dev/kgpu*",))]
    assert device_event(uevent("add", "/a", "kgpu", MAJOR="555"), site) is not None
    assert device_event(uevent("add", "/a", "kgpu", DEVNAME="kgpu0"), site) is not None
    assert device_event(uevent("add", "/a", "kgpu", DRIVER="kgpu"), site) is not None
    assert device_event(uevent("add", "/a", "kgpu"), site) is None
    assert device_event(uevent("add", "/module/nvidia", "module"), []) is None


@given(
    st.dictionaries(
        st.sampled_from(["ACTION", "DEVPATH", "SUBSYSTEM", "DRIVER", "PCI_ID", "MAJOR", "DEVNAME", "X"]),
        st.one_of(st.text(), st.sampled_from([*ACTIONS, "pci", "module", "nvidia", "195", "10DE:1", ":"])),
    )
)
def test_any_properties(properties: dict[str, str]) -> None:
    """Whatever an event has, it is told as it is or not at all."""
    event = device_event(properties, BUILT_IN.values())
    assert event is None or (event.action in ACTIONS and event.devpath == properties.get("DEVPATH", ""))
