"""Inventories of hosts with NVIDIA GPUs, made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from gpuguard.model.gpu_inventory import Gpu, GpuInventory, MigInstance, Node
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import CHAR, Access, Rule

MADE, STARTED = 10.0, 100.0
UVM, CAPS = 510, 511
DRIVER = frozenset(
    (CHAR, major, name)
    for major, name in (
        (195, "nvidia"),
        (195, "nvidiactl"),
        (195, "nvidia-modeset"),
        (UVM, "nvidia-uvm"),
        (CAPS, "nvidia-caps"),
    )
)


def uuid(number: int) -> str:
    """Return the UUID of a GPU."""
    return f"GPU-{number:08x}-1111-2222-3333-444444444444"


def gpu(index: int, minor: int) -> Gpu:
    """Return a GPU; its address tells its index, its UUID its minor."""
    return Gpu(index, minor, uuid(minor), f"0000:{16 + index:02x}:00.0")


def nodes(minors: Iterable[int], caps: Iterable[int] = (), uvm: int = UVM) -> dict[str, Node]:
    """Return a host's nodes, made before anything started."""
    numbers = {
        "/dev/nvidiactl": (195, 255),
        "/dev/nvidia-modeset": (195, 254),
        "/dev/nvidia-uvm": (uvm, 0),
        "/dev/nvidia-uvm-tools": (uvm, 1),
        **{f"/dev/nvidia{minor}": (195, minor) for minor in minors},
        **{f"/dev/nvidia-caps/nvidia-cap{minor}": (CAPS, minor) for minor in caps},
    }
    return {path: Node(DeviceNumber(CHAR, *number), MADE) for path, number in numbers.items()}


def inventory(
    *gpus: Gpu, instances: tuple[MigInstance, ...] = (), drivers: Optional[frozenset[tuple[str, int, str]]] = None
) -> GpuInventory:
    """Return a host with these GPUs, and their nodes."""
    caps = {1, 2}.union(*(instance.access for instance in instances))
    return GpuInventory(
        gpus=gpus,
        instances=instances,
        nodes=nodes([gpu.minor for gpu in gpus], caps),
        majors=Majors(DRIVER if drivers is None else drivers),
    )


def rules(*numbers: str) -> frozenset[Rule]:
    """Return rules "rw" for numbers such as "195:0"."""
    return frozenset(Rule.parse(f"c {number} {Access.RW.letters()}") for number in numbers)
