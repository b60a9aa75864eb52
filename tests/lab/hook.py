"""What NVIDIA's container hook does on cgroup v1, behind systemd's back."""

from __future__ import annotations

from pathlib import Path

from tests.lab.devices import Device


def allow(cgroup: Path, device: Device, access: str = "rw") -> None:
    """Write a device's rule to a container's devices.allow.

    The hook (libnvidia-container, nvc_cgroup_v1: `c 195:0 rw`) does so after systemd has made the scope and before
    the container's program starts. Raises OSError when the kernel refuses: EPERM, when an ancestor denies the device.
    """
    (cgroup / "devices.allow").write_text(f"{device.rule} {access}", encoding="ascii")
