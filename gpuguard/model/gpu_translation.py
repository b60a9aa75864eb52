"""A request of NVIDIA's hook in device numbers, by the host's inventory. Pure.

Which nodes belong to what: libnvidia-container 1.17, src/nvc_mount.c (nvc_driver_mount, nvc_device_mount,
nvc_mig_device_access_caps_mount), src/options.h, src/cli/{common,configure}.c (how devices are named).
Indexes are NVML's, which are in the order of PCI addresses as nvidia-smi shows them (NVIDIA/nvidia-docker#376); NVML's
documentation promises no order over reboots, and numbers in /dev have another order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Optional

from gpuguard.model.clean import clean
from gpuguard.model.gpu_inventory import (
    CONTROL_NODE,
    MODESET_NODE,
    UVM_NODES,
    Gpu,
    GpuInventory,
    MigInstance,
    cap_node,
    rule_number,
)
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.nvidia_request import ALL, Honoured
from gpuguard.model.rule import Rule

# The hook itself loads the driver and makes nodes that are missing (load-kmods, src/nvc.c), after the specification was
# written: as for the first container after a boot. Such a node may have been given; only a mount can tell. Seconds.
LOADING = 30.0

# Of the name of one device, and doubts that are told.
_SHOWN, _MOST_DOUBTS = 100, 16

# "video" needs CUDA's libraries, and these their devices.
_NEED_UVM = frozenset({"compute", "video"})

_INDEX = re.compile(r"\d{1,4}", re.ASCII)
_MIG_INDEX = re.compile(r"(\d{1,4}):(\d{1,4})", re.ASCII)
_BUS = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{1,2}):([0-9a-f]{1,2})\.0", re.ASCII)
# Before driver 470 a MIG device's name told what it is; since then it is a UUID of its own.
_MIG_NAME = re.compile(r"mig-(gpu-[0-9a-f-]{36})/(\d{1,4})/(\d{1,4})", re.ASCII)


@dataclass(frozen=True)
class Translation:
    """The rules that a request comes down to.

    `exact` are those that follow from the request and the inventory alone; `possible` holds them and the others that
    it may have meant, so that nothing else can have been given for it. `unknown` says for people what is in it that
    cannot be told. `elsewhere`: the hook took the nodes from another /dev than the host's.
    """

    exact: frozenset[Rule] = frozenset()
    possible: frozenset[Rule] = frozenset()
    unknown: tuple[str, ...] = ()
    elsewhere: bool = False


def translate(request: Honoured, inventory: GpuInventory, started: float) -> Translation:
    """Put a request in numbers. `started` is when its specification was written, in seconds since the epoch."""
    work = _translated(request, inventory, started)
    late = _translated(request, inventory, started + LOADING)
    possible = frozenset(work.exact | work.possible | late.exact | late.possible)
    return Translation(frozenset(work.exact), possible, tuple(work.unknown), bool(request.root))


def _translated(request: Honoured, inventory: GpuInventory, by: float) -> _Work:
    """Translate with the nodes that were made until a moment."""
    work = _Work(inventory, by, request.manages_mig)
    work.control(request.capabilities)
    by_nodes = inventory.gpus is None and (_all_named(request.devices) or _all_counted(request.devices, inventory, by))
    if by_nodes:
        work.exact.update(work.rules(inventory.gpu_nodes().values()))
    else:
        for device in request.devices:
            work.device(device)
    if request.manages_mig:
        work.unknown.append("rights to manage MIG are not taken from a request")
    return work


def granted(
    translation: Translation, mounted: Optional[frozenset[DeviceNumber]]
) -> tuple[frozenset[Rule], tuple[str, ...]]:
    """Return what a request entitles to, and the doubts that are left.

    `mounted` are the devices that the hook has put into the container, None where its mounts prove nothing.
    """
    if mounted is None or translation.elsewhere:
        open_ = translation.possible - translation.exact
        doubts = tuple(f"{rule.device} may have been given, which cannot be told" for rule in _sorted(open_))
        return translation.exact, _some(translation.unknown + doubts)
    rules = frozenset(rule for rule in translation.possible if rule_number(rule) in mounted)
    missing = translation.exact - rules
    doubts = tuple(f"{rule.device} was asked for, but is not mounted in the container" for rule in _sorted(missing))
    return rules, _some(translation.unknown + doubts)


def _some(doubts: tuple[str, ...]) -> tuple[str, ...]:
    left = len(doubts) - _MOST_DOUBTS
    return (*doubts[:_MOST_DOUBTS], f"and {left} more of these") if left > 0 else doubts


def _sorted(rules: Iterable[Rule]) -> list[Rule]:
    return sorted(rules, key=lambda rule: rule.sort_key)


def _all_named(devices: tuple[str, ...]) -> bool:
    return any(device.lower() == ALL for device in devices)


def _all_counted(devices: tuple[str, ...], inventory: GpuInventory, started: float) -> bool:
    """Whether each index is named, where only the nodes tell how many GPUs there were."""
    if not devices or not all(_INDEX.fullmatch(device) for device in devices) or not inventory.in_place(started):
        return False
    return {int(device) for device in devices} == set(range(len(inventory.gpu_nodes())))


@dataclass
class _Work:
    inventory: GpuInventory
    started: float
    manages_mig: bool
    exact: set[Rule] = field(default_factory=set)
    possible: set[Rule] = field(default_factory=set)
    unknown: list[str] = field(default_factory=list)

    def control(self, capabilities: frozenset[str]) -> None:
        paths = [CONTROL_NODE]
        if capabilities & _NEED_UVM:
            paths.extend(UVM_NODES)
        if "display" in capabilities:
            paths.append(MODESET_NODE)
        for path in paths:
            found = list(self.rules([path]))
            self.exact.update(found)
            # The hook leaves out what is not there, but for nvidiactl, without which it fails.
            if not found and (path in self.inventory.nodes or path == CONTROL_NODE):
                self.unknown.append(f"{path} is not there as at the container's start")

    def device(self, device: str) -> None:
        name = device.lower()
        if name == ALL:
            self._all()
        elif self.inventory.gpus is None:
            self._anything(device, "the driver does not say which GPU that is")
        elif _INDEX.fullmatch(name):
            self._index(device, int(name))
        else:
            self._named(device, name, self.inventory.gpus)

    def _named(self, device: str, name: str, gpus: tuple[Gpu, ...]) -> None:
        bus = _address(name)
        found = [gpu for gpu in gpus if (gpu.uuid and gpu.uuid.lower() == name) or (bus and _address(gpu.bus) == bus)]
        mig_name, mig_index = _MIG_NAME.fullmatch(name), _MIG_INDEX.fullmatch(name)
        if found:
            self._whole(found)
        elif mig_name is not None:
            self._mig_by_name(device, [gpu for gpu in gpus if gpu.uuid.lower() == mig_name[1]], mig_name)
        elif mig_index is not None:
            self._mig_by_index(device, int(mig_index[1]))
        elif name.startswith("mig-"):
            self._mig_of(gpus, device)
        else:
            self._lost(device)

    def _all(self) -> None:
        gpus = self.inventory.gpus or ()
        self._whole(gpus)
        if not self.inventory.in_place(self.started):
            self.possible.update(self.rules(self.inventory.gpu_nodes().values()))
            self.unknown.append("whether there were other GPUs at the container's start cannot be told")

    def _index(self, device: str, index: int) -> None:
        gpus = self.inventory.gpus or ()
        if not self.inventory.in_place(self.started):
            self._anything(device, "GPUs have come or gone since the container's start, and indexes with them")
        elif index < len(gpus):
            self._whole([gpus[index]])
        else:
            self._lost(device)

    def _whole(self, gpus: Iterable[Gpu]) -> None:
        """Add GPUs, and as possible the instances that they have now: those of the start may have been others."""
        for gpu in gpus:
            self.exact.update(self._gpu(gpu))
            self.possible.update(self._access(gpu))

    def _mig_by_name(self, device: str, gpus: list[Gpu], name: re.Match[str]) -> None:
        gi, ci = int(name[2]), int(name[3])
        for gpu in gpus:
            self.exact.update(self._gpu(gpu))
            found = [one for one in self._instances(gpu) if (one.gi, one.ci) == (gi, ci)]
            self.exact.update(self._caps(found))
            if found:
                return
        self._lost(device)

    def _mig_by_index(self, device: str, index: int) -> None:
        gpus = self.inventory.gpus or ()
        if not self.inventory.in_place(self.started):
            self._anything(device, "GPUs have come or gone since the container's start, and indexes with them")
        elif index < len(gpus):
            self.exact.update(self._gpu(gpus[index]))
            self._mig_of([gpus[index]], device)
        else:
            self._lost(device)

    def _mig_of(self, gpus: Iterable[Gpu], device: str) -> None:
        for gpu in gpus:
            if self._instances(gpu):
                self.possible.update((*self._gpu(gpu), *self._access(gpu)))
        self.unknown.append(f"{clean(device, _SHOWN)}: only NVML can tell which MIG instance that is")

    def _anything(self, device: str, why: str) -> None:
        self.possible.update(self.rules(self.inventory.gpu_nodes().values()))
        for gpu in self.inventory.gpus or ():
            self.possible.update(self._access(gpu))
        self.unknown.append(f"{clean(device, _SHOWN)}: {why}")

    def _lost(self, device: str) -> None:
        self.unknown.append(f"{clean(device, _SHOWN)}: the host has no such GPU now")

    def _gpu(self, gpu: Gpu) -> Iterator[Rule]:
        return self.rules([path for minor, path in self.inventory.gpu_nodes().items() if minor == gpu.minor])

    def _instances(self, gpu: Gpu) -> list[MigInstance]:
        return [one for one in self.inventory.instances if one.gpu == gpu.minor]

    def _access(self, gpu: Gpu) -> Iterator[Rule]:
        return self._caps(self._instances(gpu))

    def _caps(self, instances: Iterable[MigInstance]) -> Iterator[Rule]:
        if self.manages_mig:
            return iter(())
        return self.rules([cap_node(minor) for one in instances for minor in one.access])

    def rules(self, paths: Iterable[str]) -> Iterator[Rule]:
        for path in paths:
            rule = self.inventory.rule(path, self.started)
            if rule is not None:
                yield rule


def _address(text: str) -> Optional[tuple[int, ...]]:
    match = _BUS.fullmatch(text.lower())
    return tuple(int(part, 16) for part in match.groups()) if match is not None else None
