"""Which of the kernel's device events concern a guarded device or its driver. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Optional

from gpuguard.model.device_classes import DeviceClass

ACTIONS = frozenset({"add", "remove", "bind", "unbind", "change"})


@dataclass(frozen=True)
class DeviceEvent:
    """A driver or a device came, went, or changed.

    `devpath` is below /sys; `driver` is the name of the device's driver, that of the module where the event is a
    module's, "" where the kernel does not tell (as with "unbind").
    """

    action: str
    devpath: str
    subsystem: str
    driver: str = ""


def device_event(properties: Mapping[str, str], classes: Iterable[DeviceClass]) -> Optional[DeviceEvent]:
    """Return the event if it concerns one of the classes, None if not. `properties`: those of a kernel uevent.

    They are Documentation/driver-api/driver-model's and each bus's own: pci_uevent() gives PCI_ID for every action.
    """
    action, devpath = properties.get("ACTION", ""), properties.get("DEVPATH", "")
    if action not in ACTIONS or not any(_concerns(properties, known) for known in classes):
        return None
    return DeviceEvent(action, devpath, properties.get("SUBSYSTEM", ""), _driver(properties))


def _driver(properties: Mapping[str, str]) -> str:
    if properties.get("SUBSYSTEM") == "module":
        return properties.get("DEVPATH", "").rpartition("/")[2]
    return properties.get("DRIVER", "")


def _concerns(properties: Mapping[str, str], known: DeviceClass) -> bool:
    driver = _driver(properties)
    if driver and any(fnmatchcase(driver, glob) for glob in (*known.drivers, *known.modules)):
        return True
    if properties.get("SUBSYSTEM") == "pci" and properties.get("PCI_ID", "").partition(":")[0] in known.vendors:
        return True
    if properties.get("SUBSYSTEM") != "block" and properties.get("MAJOR", "") in {str(major) for major in known.majors}:
        return True
    node = properties.get("DEVNAME", "")
    return bool(node) and any(fnmatchcase(f"/dev/{node}", glob) for glob in known.nodes)
