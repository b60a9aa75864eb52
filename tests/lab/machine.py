"""What a machine must have for a real node, and what to say when it has not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Optional

PACKAGES = {
    "systemctl": "systemd",
    "busctl": "systemd",
    "dbus-daemon": "dbus",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "pivot_root": "util-linux",
    "mount": "mount",
    "docker": "docker.io",
    "dockerd": "docker.io",
    "containerd": "containerd",
    "podman": "podman",
    "conmon": "conmon",
    "runc": "runc",
    "busybox": "busybox-static",
    "curl": "curl",
    "promtool": "prometheus",
    "debootstrap": "debootstrap",
    "crun": "crun",
    "ctr": "containerd",
    "systemd-nspawn": "systemd-container",
    "machinectl": "systemd-container",
}
"""Program → the Debian and Ubuntu package it comes with (tests/lab/packages.txt)."""

_NODE = ("systemctl", "busctl", "dbus-daemon", "unshare", "nsenter", "pivot_root", "mount")

_OVERLAY = """
mount -t tmpfs lab /mnt && cd /mnt && mkdir root upper work &&
mount -t overlay overlay -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work root
"""


def missing(*programs: str) -> Optional[str]:
    """Name the first of these programs that is not installed and its package, or return None."""
    for program in programs:
        if shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
            return f"{program} is not installed (Debian and Ubuntu: apt-get install {PACKAGES[program]})"
    return None


def why_not(mode: str) -> Optional[str]:
    """Say why this machine cannot boot a node of this mode ("v1" or "v2"), or return None when it can.

    Tried, not guessed: each kernel feature is used once in namespaces that vanish at once.
    """
    if sys.platform != "linux":
        return f"a node needs Linux; this is {sys.platform}"
    if os.geteuid() != 0:
        return "a node needs root (CAP_SYS_ADMIN); this is an ordinary user"
    lacking = missing(*_NODE)
    if lacking is not None:
        return lacking
    if not Path("/lib/systemd/systemd").exists():
        return "systemd is not installed (Debian and Ubuntu: apt-get install systemd)"
    hierarchy = "mount -t cgroup -o devices cgroup /mnt" if mode == "v1" else "mount -t cgroup2 cgroup2 /mnt"
    probes: tuple[tuple[str, list[str], str], ...] = (
        ("new namespaces", ["--uts", "--ipc", "--pid", "--cgroup", "--fork"], "true"),
        ("an overlay of the root file system", [], _OVERLAY),
        (f"the cgroup {mode} hierarchy", [], hierarchy),
    )
    for what, spaces, script in probes:
        tried = ["unshare", "--mount", *spaces, "--", "sh", "-c", script]
        done = subprocess.run(tried, capture_output=True, text=True, check=False)
        if done.returncode:
            return f"this machine does not allow {what}: {done.stderr.strip()}"
    return None
