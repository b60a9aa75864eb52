"""What NVIDIA's driver shows of itself on a host, simulated in a node: /proc/driver, /proc/devices and /dev.

No driver stands behind the numbers: an open that the device cgroup allows gives ENXIO.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from tests.lab.devices import CTL, NVIDIA, UVM, Device
from tests.lab.node import Node

MODESET = Device("/dev/nvidia-modeset", 195, 254)
UVM_TOOLS = Device("/dev/nvidia-uvm-tools", UVM.major, 1)

_FILES = Path("/run/lab-nvidia")

# nvidia-caps numbers its files so: config, monitor, then per GPU 15 instances with 8 compute instances each.
_CONFIG, _MONITOR, _FIRST, _INSTANCES, _COMPUTE = 1, 2, 3, 15, 8


@dataclass(frozen=True)
class Mig:
    """A compute instance of a GPU instance of the GPU with this minor."""

    gpu: int
    instance: int
    compute: int = 0

    @property
    def minors(self) -> dict[str, int]:
        """The minors of nvidia-caps that give access to both, by the name that the driver has for each."""
        own = _FIRST + (self.gpu * _INSTANCES + self.instance) * (_COMPUTE + 1)
        above = f"gpu{self.gpu}/gi{self.instance}"
        return {f"{above}/access": own, f"{above}/ci{self.compute}/access": own + 1 + self.compute}


@dataclass(frozen=True)
class Inventory:
    """What a host has. By default what a node has anyway: two GPUs, their control node and nvidia-uvm.

    `caps` and `imex` are the majors of nvidia-caps and nvidia-caps-imex-channels, None where the driver has none.
    `name`: the driver's own in /proc/devices, "nvidia-frontend" before 550.40.
    """

    gpus: tuple[int, ...] = (0, 1)
    uvm: int = UVM.major
    caps: Optional[int] = None
    mig: tuple[Mig, ...] = ()
    imex: Optional[int] = None
    channels: tuple[int, ...] = ()
    name: str = "nvidia"

    @property
    def devices(self) -> list[Device]:
        """All its nodes in /dev."""
        found = [CTL, MODESET, *(Device(f"/dev/nvidia{minor}", CTL.major, minor) for minor in self.gpus)]
        found += [Device(UVM.path, self.uvm, UVM.minor), Device(UVM_TOOLS.path, self.uvm, UVM_TOOLS.minor)]
        if self.caps is not None:
            found += [Device(f"/dev/nvidia-caps/nvidia-cap{minor}", self.caps, minor) for minor in self._caps.values()]
        if self.imex is not None:
            channels = "/dev/nvidia-caps-imex-channels/channel"
            found += [Device(f"{channels}{channel}", self.imex, channel) for channel in self.channels]
        return found

    @property
    def _caps(self) -> dict[str, int]:
        found = {"config": _CONFIG, "monitor": _MONITOR}
        for instance in self.mig:
            found.update(instance.minors)
        return found

    def proc_driver(self) -> Iterator[tuple[str, str]]:
        """Yield the files below /proc/driver: path and text."""
        yield "nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15\n"
        for minor in self.gpus:
            information = {
                "Model": "NVIDIA A100-SXM4-40GB",
                "IRQ": "0",
                "GPU UUID": uuid(minor),
                "Video BIOS": "92.00.19.00.10",
                "Bus Type": "PCIe",
                "DMA Size": "47 bits",
                "DMA Mask": "0x7fffffffffff",
                "Bus Location": bus(minor),
                "Device Minor": str(minor),
                "GPU Excluded": "No",
            }
            text = "".join(f"{key + ':':<16} {value}\n" for key, value in information.items())
            yield f"nvidia/gpus/{bus(minor)}/information", text
        if self.caps is None:
            return
        yield "nvidia-caps/mig-minors", "".join(f"{name} {minor}\n" for name, minor in self._caps.items())
        for name, minor in self._caps.items():
            gpu, _, rest = name.partition("/")
            path = f"{gpu}/mig/{rest}" if rest else f"mig/{gpu}"
            mode = 0o400 if minor == _CONFIG else 0o444
            text = f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: 1\n"
            yield f"nvidia/capabilities/{path}", text

    def proc_devices(self, without: str) -> str:
        """Return a /proc/devices with the driver from one without."""
        majors = {CTL.major: (self.name, "nvidia-modeset", "nvidiactl"), self.uvm: ("nvidia-uvm",)}
        if self.caps is not None:
            majors[self.caps] = ("nvidia-caps",)
        if self.imex is not None:
            majors[self.imex] = ("nvidia-caps-imex-channels",)
        lines = [f"{major:3d} {name}" for major, names in majors.items() for name in names]
        character, separator, block = without.partition("\n\nBlock devices:")
        return "\n".join([character, *lines]) + separator + block


def uuid(minor: int) -> str:
    """Return the UUID of the GPU with this minor."""
    return f"GPU-{minor:08x}-1111-2222-3333-444444444444"


def bus(minor: int) -> str:
    """Return its PCI address; NVML counts GPUs in this order."""
    return f"0000:{0x10 + minor:02x}:00.0"


class Driver(AbstractContextManager["Driver"]):
    """The driver of one node; without it the node has what was there before."""

    def __init__(self, node: Node, inventory: Optional[Inventory] = None) -> None:
        self.node = node
        self.inventory = Inventory(())
        self._without = node.path("/proc/devices").read_text(encoding="ascii")
        self._loads = 0
        self.load(inventory or Inventory())

    def load(self, inventory: Inventory) -> None:
        """Have the host have this from now on. Each file changes in one moment; a node that is right stays."""
        self._nodes(inventory.devices)
        self.inventory = inventory
        self._loads += 1
        inside = _FILES / str(self._loads)
        files = self.node.path(inside)
        for path, text in inventory.proc_driver():
            file = files / "driver" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="ascii")
        (files / "devices").write_text(inventory.proc_devices(self._without), encoding="ascii")
        for name in ("driver", "devices"):
            self.node.run(["mount", "--bind", str(inside / name), f"/proc/{name}"])

    def _nodes(self, devices: list[Device]) -> None:
        root = self.node.path("/")
        for path in {device.path for device in (*self.inventory.devices, *devices)}:
            node = root / path[1:]
            wanted = [device for device in devices if device.path == path]
            if not node.exists() or node.stat().st_rdev not in {os.makedev(one.major, one.minor) for one in wanted}:
                node.unlink(missing_ok=True)
                node.parent.mkdir(exist_ok=True)
                for device in wanted:
                    device.make(root)

    def __exit__(self, *_: object) -> None:
        """Unload it."""
        mounts = ["/proc/driver", "/proc/devices"] * self._loads
        self.node.run(["umount", "--lazy", *mounts])
        shutil.rmtree(self.node.path(_FILES))
        self._nodes(list(NVIDIA))
