"""Which cgroup hierarchy gates devices on this node."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from gpuguard.errors import CgroupUnreadableError

if TYPE_CHECKING:
    from pathlib import Path


class CgroupMode(str, enum.Enum):
    """v1: the devices controller and its lists. v2: BPF programs on the unified hierarchy."""

    V1 = "v1"
    V2 = "v2"


def detect(cgroup: Path) -> CgroupMode:
    """Tell which hierarchy below `cgroup` (normally /sys/fs/cgroup) gates devices.

    A hybrid host mounts both; there the v1 devices controller is the one that systemd and the
    runtimes write (systemd.resource-control(5)). Raises CgroupUnreadableError when neither is there.
    """
    if (cgroup / "devices" / "devices.list").exists():
        return CgroupMode.V1
    if (cgroup / "cgroup.controllers").exists():
        return CgroupMode.V2
    raise CgroupUnreadableError(
        f"{cgroup}: neither a v1 devices hierarchy (devices/devices.list) nor cgroup v2 (cgroup.controllers) "
        "is mounted here; set [paths] cgroup to where this node's cgroups are visible"
    )
