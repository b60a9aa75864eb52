"""The device nodes of a node with two GPUs; no driver stands behind them.

Open of an allowed node gives ENXIO, of a denied one EPERM: that pair tells whether a container has its GPU.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Device:
    """A character device node."""

    path: str
    major: int
    minor: int

    @property
    def rule(self) -> str:
        """Type and numbers as in devices.list, without access: "c 195:0"."""
        return f"c {self.major}:{self.minor}"

    def make(self, root: Path) -> None:
        """Make the node below `root`, open to everybody, as NVIDIA's are."""
        node = root / self.path.lstrip("/")
        os.mknod(node, stat.S_IFCHR, os.makedev(self.major, self.minor))
        node.chmod(0o666)


# NVIDIA's major 195 is registered with the kernel's list of numbers; nvidia-uvm's is given out when it is loaded.
GPU0 = Device("/dev/nvidia0", 195, 0)
GPU1 = Device("/dev/nvidia1", 195, 1)
CTL = Device("/dev/nvidiactl", 195, 255)
UVM = Device("/dev/nvidia-uvm", 510, 0)
FUSE = Device("/dev/fuse", 10, 229)

NVIDIA = (GPU0, GPU1, CTL, UVM)
PLAIN = tuple(
    Device(f"/dev/{name}", major, minor)
    for name, major, minor in (
        ("null", 1, 3),
        ("zero", 1, 5),
        ("full", 1, 7),
        ("random", 1, 8),
        ("urandom", 1, 9),
        ("kmsg", 1, 11),
        ("tty", 5, 0),
    )
)
