"""What NVIDIA's container hook (libnvidia-container) does to a container's device rules, behind systemd's back.

It does so after systemd has made the scope and before the container's program starts. It grants "rw", never "m".
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gpuguard.errors import ProgramGoneError
from gpuguard.kernel.bpf import program as read
from gpuguard.kernel.bpf import query
from gpuguard.model.rule import Rule
from tests.lab import bpf, device_programs
from tests.lab.devices import Device
from tests.lab.errors import LabError

_TRIES = 50  # systemd may reload several times a second


def allow(cgroup: Path, device: Device, access: str = "rw") -> None:
    """Give a container a device, on cgroup v1 or v2.

    Raises OSError when the kernel refuses it on v1: EPERM, when an ancestor denies the device.
    Raises LabError when it refuses on v2.
    """
    rule = f"{device.rule} {access}"
    if (cgroup / "devices.allow").exists():
        (cgroup / "devices.allow").write_text(rule, encoding="ascii")
    else:
        prepend(cgroup, Rule.parse(rule))


def prepend(cgroup: Path, rule: Rule) -> None:
    """Do as nvcgo does on cgroup v2 for one device (v2.go, ebpf.go).

    Of each program that is attached it loads a copy with the device's rule before it; it detaches all the old
    ones, also systemd's, and attaches the new ones. Between the two the container is not restricted. Where systemd
    replaces its program meanwhile the hook itself fails; this one goes on, so that what it took away comes back.
    """
    for _ in range(_TRIES):
        old = attached(cgroup)
        try:
            new = [device_programs.hook(read(number).code, [rule]) for number in old]
        except (ProgramGoneError, LabError):
            if attached(cgroup) == old:
                raise
            continue
        for number in old:
            _detach(cgroup, number)
        for code in new:
            with bpf.program(code) as loaded:
                bpf.attach(cgroup, loaded.fd)
        return
    raise LabError(f"{cgroup}: its device programs do not stay")


def _detach(cgroup: Path, number: int) -> None:
    try:
        with bpf.opened(number) as descriptor:
            bpf.detach(cgroup, descriptor)
    except LabError:
        if number in attached(cgroup):
            raise


def attached(cgroup: Path) -> Sequence[int]:
    """Return the ids of the device programs on a cgroup itself."""
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return query(directory, effective=False)
    finally:
        os.close(directory)
