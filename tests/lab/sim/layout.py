"""Where the files of a simulated node are, below its root, and what stands in them at the start."""

from __future__ import annotations

import contextlib
from pathlib import Path

from tests.lab.devices import NVIDIA, UVM
from tests.lab.sim.unitfile import TRANSIENT

CGROUP = "sys/fs/cgroup"
GRAVEYARD = "removed"
CONTROL = "control"
BUS_SOCKET = "run/dbus/system_bus_socket"
BUS_PID = "run/dbus/pid"
BUS_CONFIG = "run/dbus/system.conf"

BOOT_ID = "5a5a0000-1111-4222-8333-444455556666"

# The names are those of NVIDIA's driver from 550.40 on.
_PROC_DEVICES = f"""Character devices:
  1 mem
  4 tty
  5 /dev/tty
  5 /dev/ptmx
 10 misc
128 ptm
136 pts
188 ttyUSB
195 nvidia
195 nvidiactl
{UVM.major} nvidia-uvm

Block devices:
  8 sd
259 blkext
"""

_HOST_NODES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx")


def make(root: Path) -> None:
    """Make everything but the cgroup tree."""
    for directory in ("dev", "proc/sys/kernel/random", "run/dbus", "run/gpuguard", TRANSIENT, "etc/systemd/system"):
        (root / directory).mkdir(parents=True, exist_ok=True)
    (root / "proc/devices").write_text(_PROC_DEVICES)
    (root / "proc/sys/kernel/random/boot_id").write_text(BOOT_ID + "\n")
    for name in _HOST_NODES:
        (root / "dev" / name).symlink_to(Path("/dev") / name)
    for device in NVIDIA:
        # Only root may make device nodes. Without them "/dev/char/195:0" still has its meaning, "/dev/nvidia0" none.
        with contextlib.suppress(PermissionError):
            device.make(root)


def bus_address(root: Path) -> str:
    """Return the D-Bus address of the node's system bus."""
    return f"unix:path={root / BUS_SOCKET}"
