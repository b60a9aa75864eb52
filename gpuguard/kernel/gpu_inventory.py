"""Reads what GPUs a host has: what NVIDIA's driver shows below /proc/driver, and the nodes in /dev.

Forms: open-gpu-kernel-modules, kernel-open/nvidia/nv-procfs.c (nv_procfs_read_gpu_info), and NVIDIA's MIG User Guide,
"Device Nodes and Capabilities". Reading a GPU's information can wake it up, and wait while the host goes to sleep: that
is for a thread, and not for each round of the clock.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Optional

from gpuguard.kernel.procfs import Host
from gpuguard.model.gpu_inventory import Gpu, GpuInventory, MigInstance, Node
from gpuguard.model.majors import Majors

_NODES = ("/dev/nvidia*", "/dev/nvidia-caps/nvidia-cap*")
_MAX_NODES = 8192
_MAX_GPUS = 256
_MAX_INSTANCES = 1024
# A GPU's information is some 400 bytes; mig-minors has a line for each of the 4,320 instances that there can be.
_MAX_INFORMATION, _MAX_MINORS = 1 << 14, 1 << 20
_MAX_MINOR = (1 << 20) - 1

_FACT = re.compile(r"([^:]{1,40}):\s*(.*?)\s*")
_BUS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.ASCII | re.IGNORECASE)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,7}", re.ASCII)
_INSTANCE = re.compile(r"gpu(\d{1,4})/mig/gi(\d{1,4})/ci(\d{1,4})", re.ASCII)
_EXCLUDED = ("GPU Excluded", "Blacklisted")


def read_inventory(proc: Path, dev: Path) -> GpuInventory:
    """Return what is there now. Raises CgroupUnreadableError without /proc/devices; the rest may be missing."""
    host = Host(proc, dev)
    majors = Majors.parse(host.devices())
    found = _gpus(proc / "driver/nvidia/gpus")
    return GpuInventory(
        gpus=found[0] if found is not None else None,
        excluded=found[1] if found is not None else frozenset(),
        instances=tuple(islice(_instances(proc / "driver"), _MAX_INSTANCES)),
        nodes=dict(islice(_nodes(host, dev), _MAX_NODES)),
        majors=majors,
    )


def _gpus(directory: Path) -> Optional[tuple[tuple[Gpu, ...], frozenset[int]]]:
    """Return the GPUs in the order of their addresses, and the minors of the excluded; None unless all can be read.

    NVML does not count excluded GPUs. An index means nothing where one GPU is not known.
    """
    names = _names(directory, _MAX_GPUS)
    if names is None:
        return None
    usable, excluded = [], set()
    for name in names:
        facts = _facts(directory / name / "information", _MAX_INFORMATION)
        minor, bus = _number(facts.get("Device Minor", "")), facts.get("Bus Location", name)
        if minor is None or _BUS.fullmatch(bus) is None:
            return None
        if any(facts.get(key, "No") != "No" for key in _EXCLUDED):
            excluded.add(minor)
            continue
        uuid = facts.get("GPU UUID", "")
        usable.append((_address(bus), minor, uuid if _UUID.fullmatch(uuid) else "", bus))
    usable.sort()
    if len({minor for _, minor, _, _ in usable} - excluded) != len(usable):
        return None
    gpus = tuple(Gpu(index, minor, uuid, bus) for index, (_, minor, uuid, bus) in enumerate(usable))
    return gpus, frozenset(excluded)


def _instances(driver: Path) -> Iterator[MigInstance]:
    """Yield the MIG compute instances that there are; one whose minors are told in two ways is left out."""
    above = driver / "nvidia/capabilities"
    minors: Optional[dict[str, int]] = None
    for path in _compute_instances(above):
        match = _INSTANCE.fullmatch(path)
        if match is None:
            continue
        if minors is None:
            minors = _minors(driver / "nvidia-caps/mig-minors")
        gpu, gi, ci = (int(number) for number in match.groups())
        of_gpu = _access(above / path.rpartition("/")[0], f"gpu{gpu}/gi{gi}/access", minors)
        of_compute = _access(above / path, f"gpu{gpu}/gi{gi}/ci{ci}/access", minors)
        if of_gpu is not None and of_compute is not None:
            yield MigInstance(gpu, gi, ci, (of_gpu, of_compute))


def _compute_instances(above: Path) -> Iterator[str]:
    for gpu in _names(above, _MAX_GPUS) or ():
        if gpu.startswith("gpu"):
            for gi in _names(above / gpu / "mig", _MAX_GPUS) or ():
                for ci in _names(above / gpu / "mig" / gi, _MAX_GPUS) or ():
                    yield f"{gpu}/mig/{gi}/{ci}"


def _access(directory: Path, name: str, minors: dict[str, int]) -> Optional[int]:
    minor = _number(_facts(directory / "access", _MAX_INFORMATION).get("DeviceFileMinor", ""))
    return minor if minor == minors.get(name, minor) else None


def _minors(path: Path) -> dict[str, int]:
    found = {}
    for line in _text(path, _MAX_MINORS).splitlines():
        name, _, number = line.partition(" ")
        minor = _number(number)
        if minor is not None:
            found[name] = minor
    return found


def _nodes(host: Host, dev: Path) -> Iterator[tuple[str, Node]]:
    for path, number in host.nodes(_NODES):
        try:
            status = os.lstat(dev / path[len("/dev/") :])
        except OSError:
            continue
        # One that is a link to another is not what the hook mounts.
        if status.st_rdev == os.makedev(number.major, number.minor):
            yield path, Node(number, status.st_mtime)


def _names(directory: Path, most: int) -> Optional[list[str]]:
    """Return the names in a directory, sorted; None when it is not there or has too many."""
    try:
        with os.scandir(directory) as entries:
            names = sorted(entry.name for entry in islice(entries, most + 1))
    except OSError:
        return None
    return names if len(names) <= most else None


def _facts(path: Path, limit: int) -> dict[str, str]:
    matches = (_FACT.fullmatch(line) for line in _text(path, limit).splitlines())
    return {match[1].strip(): match[2] for match in matches if match is not None}


def _text(path: Path, limit: int) -> str:
    """Return the text of a file, "" when it cannot be read or is longer."""
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError:
        return ""
    return content.decode("ascii", "replace") if len(content) <= limit else ""


def _number(text: str) -> Optional[int]:
    if _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= _MAX_MINOR else None


def _address(bus: str) -> tuple[int, ...]:
    return tuple(int(part, 16) for part in re.split(r"[:.]", bus))
