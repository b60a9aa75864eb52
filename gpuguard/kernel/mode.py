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

    Where the unified hierarchy is mounted there itself, systemd and the runtimes attach programs to it, and a v1
    devices hierarchy that somebody mounted beside it gates nothing of theirs. A hybrid host mounts both one level
    lower: there they write the v1 lists (systemd, cg_all_unified(); runc, IsCgroup2UnifiedMode()).
    Raises CgroupUnreadableError when neither is there.
    """
    if (cgroup / "cgroup.controllers").exists():
        return CgroupMode.V2
    if (cgroup / "devices" / "devices.list").exists():
        return CgroupMode.V1
    raise CgroupUnreadableError(
        f"{cgroup}: neither a v1 devices hierarchy (devices/devices.list) nor cgroup v2 (cgroup.controllers) "
        "is mounted here; set [paths] cgroup to where this node's cgroups are visible"
    )
