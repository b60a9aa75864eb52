"""Which devices are guarded: the accelerators' majors, by class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import CHAR, Rule

# Each minor of the misc major is another driver's: fuse and kvm are there as well as RDMA's rdma_cm.
MISC_MAJOR = 10


@dataclass(frozen=True)
class DeviceClass:
    """One kind of device: fixed character majors, patterns of driver names, patterns of node paths.

    The node patterns are for the caller to look up: the model reads no file system. By `modules`, patterns of names of
    kernel modules and of their PCI drivers, and by `vendors`, as PCI_ID has them, it is known that such a device or its
    driver comes or goes; they guard nothing.
    """

    name: str
    majors: frozenset[int] = frozenset()
    drivers: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    vendors: frozenset[str] = frozenset()


BUILT_IN = {
    known.name: known
    for known in (
        # 195 is registered with LANANA; nvidia-uvm, nvidia-caps and the others take what is free.
        DeviceClass(
            "nvidia",
            majors=frozenset({195}),
            drivers=("nvidia*",),
            nodes=("/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/nvidia-caps-imex-channels/*"),
            vendors=frozenset({"10DE"}),
        ),
        DeviceClass(
            "amd",
            drivers=("kfd",),
            nodes=("/dev/kfd", "/dev/dri/renderD*"),
            modules=("amdgpu",),
            vendors=frozenset({"1002"}),
        ),
        DeviceClass(
            "ascend",
            drivers=("davinci*", "devmm_svm*", "hisi_hdc*"),
            nodes=("/dev/davinci*", "/dev/devmm_svm", "/dev/hisi_hdc"),
            modules=("drv_davinci*", "drv_devmm*"),
        ),
        DeviceClass(
            "habana",
            drivers=("accel", "habanalabs*"),
            nodes=("/dev/accel/*", "/dev/hl[0-9]*", "/dev/hl_controlD*"),
            vendors=frozenset({"1DA3"}),
        ),
        DeviceClass(
            "infiniband",
            drivers=("infiniband_*",),
            nodes=("/dev/infiniband/*",),
            modules=("ib_uverbs", "ib_umad", "rdma_ucm", "mlx*_ib"),
        ),
    )
}


@dataclass(frozen=True)
class Guarded:
    """Which rules give access to a guarded device: guarded(rule) tells."""

    majors: frozenset[tuple[str, int]]
    numbers: frozenset[DeviceNumber] = frozenset()

    @classmethod
    def of(cls, classes: Iterable[DeviceClass], drivers: Majors, nodes: Iterable[DeviceNumber] = ()) -> Guarded:
        """Put the classes in numbers, with /proc/devices and the numbers of the host's matching nodes."""
        majors: set[tuple[str, int]] = set()
        for known in classes:
            majors.update((CHAR, major) for major in known.majors)
            for glob in known.drivers:
                majors.update((CHAR, major) for major in drivers.matching(CHAR, glob))
        nodes = frozenset(nodes)
        shared = frozenset(node for node in nodes if (node.kind, node.major) == (CHAR, MISC_MAJOR))
        majors.update((node.kind, node.major) for node in nodes - shared)
        return cls(frozenset(majors), shared)

    def __call__(self, rule: Rule) -> bool:
        """Whether the rule lets anybody open a guarded device; `m` alone does not."""
        if not rule.opens:
            return False
        if any(rule.kind == kind and rule.major in {None, major} for kind, major in self.majors):
            return True
        return any(
            rule.kind == kind and rule.major in {None, major} and rule.minor in {None, minor}
            for kind, major, minor in self.numbers
        )
