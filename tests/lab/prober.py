"""Opens device nodes as a process of a container would, and says what the kernel answered.

The opener enters the container's device cgroup and nothing else of it: what it sees is the cgroup's answer alone,
whatever nodes the container's image has.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.devices import Device
from tests.lab.errors import LabError
from tests.lab.node import Node

_SCRIPT = Path(__file__).with_name("probe.py")
_NODES = "/run/lab-probe"  # not nodev, gone with the node, and not in /dev, which a privileged container gets whole


@dataclass(frozen=True)
class Answer:
    """What one open came to; neither allowed nor denied when the kernel said something else."""

    errno: int

    @property
    def allowed(self) -> bool:
        """The device cgroup lets it through: it opened, or there is no driver behind the node (ENXIO)."""
        return self.errno in {0, errno.ENXIO}

    @property
    def denied(self) -> bool:
        """The device cgroup denies it (EPERM)."""
        return self.errno == errno.EPERM

    def __str__(self) -> str:
        """Return the errno's name."""
        return errno.errorcode.get(self.errno, str(self.errno)) if self.errno else "opened"


@dataclass(frozen=True)
class Gap:
    """A time in which opens were denied."""

    start_ns: int
    """Of the monotonic clock: the start of its first denied open."""
    length_us: float
    """Until the start of the next open that was not denied, or until the loop ended."""
    ended: bool


@dataclass(frozen=True)
class Report:
    """What a loop of opens came to."""

    opens: int
    denied: int
    gaps: tuple[Gap, ...]
    odd: dict[str, int]
    """Errnos that are neither yes nor no, by name, with their number."""


class Loop(AbstractContextManager["Loop"]):
    """A process that opens a device as fast as it can. Get it by `Prober.loop()`; ends with `stop()`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise LabError(f"the prober does not start: {_complaint(process)}")

    def stop(self) -> Report:
        """End it and return what came of it."""
        output, complaint = self._process.communicate(timeout=30)
        if self._process.returncode:
            raise LabError(f"the prober failed: {complaint.decode(errors='replace')}")
        data = json.loads(output)
        failures = {int(number): count for number, count in data["failures"].items()}
        return Report(
            opens=data["opens"],
            denied=failures.pop(errno.EPERM, 0),
            gaps=tuple(Gap(start, (end - start) / 1000, ended) for start, end, ended in data["gaps"]),
            odd={str(Answer(number)): count for number, count in failures.items()},
        )

    def __exit__(self, *_: object) -> None:
        """End it, however the block ends."""
        if self._process.poll() is None:
            self._process.communicate(timeout=30)


class Prober:
    """Opens devices from inside the device cgroups of one node's units and containers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        node.path(_NODES).mkdir(mode=0o700, exist_ok=True)

    def open(self, cgroup: Path, device: Device) -> Answer:
        """Open `device` once from inside `cgroup`, a path outside the node. Raises LabError when it cannot try."""
        process = self._start(cgroup, device, "once")
        output, complaint = process.communicate(timeout=30)
        if process.returncode:
            raise LabError(f"the prober failed: {complaint.decode(errors='replace')}")
        return Answer(int(output))

    def denied(self, cgroup: Path, devices: Sequence[Device], within: float = 0.0) -> list[str]:
        """Open the devices until all are allowed, and return which are still denied to an open begun after `within` s.

        Raises LabError when it cannot try.
        """
        deadline = time.monotonic() + within
        left = list(devices)
        while left:
            begun = time.monotonic()
            left = [device for device in left if self.open(cgroup, device).denied]
            if left and begun > deadline:
                break
        return [device.path for device in left]

    def loop(self, cgroup: Path, device: Device) -> Loop:
        """Open `device` from inside `cgroup` as fast as possible until told to stop.

        The cgroup cannot be removed meanwhile. Where the kernel can load modules, each open of a major number without
        a driver makes it look for one: choose a device with a driver there.
        """
        return Loop(self._start(cgroup, device, "loop"))

    def _start(self, cgroup: Path, device: Device, how: str) -> subprocess.Popen[bytes]:
        nodes = self._node.path(_NODES)
        node = Device(f"/{device.major}:{device.minor}", device.major, device.minor)
        if not (nodes / node.path[1:]).exists():
            node.make(nodes)
        # In the node's pid namespace, to end with the node; in none of its others, to need no Python in there.
        enter = ["nsenter", f"--target={self._node.init}", "--pid", "--"]
        return subprocess.Popen(
            [*enter, sys.executable, "-I", str(_SCRIPT), str(cgroup), str(nodes), node.path[1:], how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )


def _complaint(process: subprocess.Popen[bytes]) -> str:
    return process.communicate(timeout=30)[1].decode(errors="replace")
