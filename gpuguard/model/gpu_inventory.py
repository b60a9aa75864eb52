"""The GPUs of a host with NVIDIA's driver, and the device nodes through which they are used. Pure.

The nodes and their numbers: libnvidia-container src/nvc_internal.h. What the driver shows below /proc/driver: NVIDIA's
open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c, and the MIG User Guide, "Device Nodes and Capabilities".
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Optional

from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import CHAR, Access, Rule

MAJOR = 195
CONTROL, MODESET = DeviceNumber(CHAR, MAJOR, 255), DeviceNumber(CHAR, MAJOR, 254)
CONTROL_NODE, MODESET_NODE = "/dev/nvidiactl", "/dev/nvidia-modeset"
UVM_NODES = ("/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
UVM, CAPS = "nvidia-uvm", "nvidia-caps"
# Major 195 in /proc/devices: "nvidia-frontend" before driver 550.40, the others from then on.
FAMILY = frozenset({"nvidia-frontend", "nvidia", "nvidiactl", "nvidia-modeset"})

_CAPS_DIRECTORY = "/dev/nvidia-caps/"
_GPU_NODE = re.compile(r"/dev/nvidia(\d{1,3})", re.ASCII)


@dataclass(frozen=True)
class Gpu:
    """One GPU. `index` is NVML's: by PCI address. `bus` is that address, "0000:17:00.0". `uuid` "" where unknown."""

    index: int
    minor: int
    uuid: str
    bus: str


class MigInstance(NamedTuple):
    """A compute instance of a GPU instance of the GPU with this minor, and the minors of nvidia-caps that open both."""

    gpu: int
    gi: int
    ci: int
    access: tuple[int, int]


class Node(NamedTuple):
    """A device node of the host; `made` is when, in seconds since the epoch."""

    number: DeviceNumber
    made: float


@dataclass(frozen=True)
class GpuInventory:
    """What a host has now.

    `gpus` are in the order of their indexes, None where the driver says nothing of them; `excluded` are the minors of
    those that it keeps from everybody. `nodes` are the host's, by path.
    """

    gpus: Optional[tuple[Gpu, ...]] = None
    excluded: frozenset[int] = frozenset()
    instances: tuple[MigInstance, ...] = ()
    nodes: Mapping[str, Node] = field(default_factory=dict)
    majors: Majors = field(default_factory=Majors)

    def rule(self, path: str, started: float) -> Optional[Rule]:
        """Return what the hook grants for a node; None unless it was there when the container started, and still is.

        It must be the driver's: not a node with the number of a driver that has another one by now.
        """
        node = self.nodes.get(path)
        if node is None or node.made > started or not self._is_the_drivers(path, node.number):
            return None
        return Rule(*node.number, Access.RW)

    def gpu_nodes(self) -> dict[int, str]:
        """Return the paths of the GPUs' nodes, by minor."""
        found = ((_GPU_NODE.fullmatch(path), path, node.number) for path, node in self.nodes.items())
        return {
            number.minor: path
            for match, path, number in found
            if match is not None and number == DeviceNumber(CHAR, MAJOR, int(match[1]))
        }

    def in_place(self, started: float) -> bool:
        """Whether all is as when the container started, as far as can be seen: a node for each GPU, none made since.

        The driver counts minors from 0: where one is missing a GPU may have gone, and its node with it.
        """
        nodes = self.gpu_nodes()
        if any(self.nodes[path].made > started for path in nodes.values()):
            return False
        if self.gpus is None:
            return bool(nodes) and _whole(nodes)
        minors = {gpu.minor for gpu in self.gpus}
        return minors <= set(nodes) <= minors | self.excluded and _whole(minors | self.excluded)

    def numbers(self) -> dict[str, DeviceNumber]:
        """Return the nodes' numbers, by path."""
        return {path: node.number for path, node in self.nodes.items()}

    def _is_the_drivers(self, path: str, number: DeviceNumber) -> bool:
        if path in UVM_NODES:
            return number.kind == CHAR and self._has(UVM, number.major, frozenset({UVM}))
        if path.startswith(_CAPS_DIRECTORY):
            # Unlike the others these are given only where the driver is there, and only by their own number.
            named = path == cap_node(number.minor) and number.kind == CHAR
            return named and CAPS in self.majors.names(CHAR, number.major)
        fixed = {CONTROL_NODE: CONTROL, MODESET_NODE: MODESET}.get(path)
        if fixed is None:
            match = _GPU_NODE.fullmatch(path)
            fixed = DeviceNumber(CHAR, MAJOR, int(match[1])) if match is not None else None
        return number == fixed and self._has("", MAJOR, FAMILY)

    def _has(self, name: str, major: int, names: frozenset[str]) -> bool:
        """Whether a major is a driver's, or nobody's while the driver is not loaded."""
        now = self.majors.names(CHAR, major)
        return bool(now & names) if now else not self.majors.matching(CHAR, name)


def _whole(minors: Collection[int]) -> bool:
    return set(minors) == set(range(len(minors)))


def cap_node(minor: int) -> str:
    """Return the path of a MIG capability's node."""
    return f"{_CAPS_DIRECTORY}nvidia-cap{minor}"


def rule_number(rule: Rule) -> Optional[DeviceNumber]:
    """Return the one number that a rule is for, None for a wildcard."""
    if rule.major is None or rule.minor is None:
        return None
    return DeviceNumber(rule.kind, rule.major, rule.minor)
