"""What the kernel lets a container open, and how somebody takes it away, on cgroup v1 and v2 alike."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from gpuguard.errors import ProgramGoneError
from gpuguard.kernel import bpf
from gpuguard.kernel.bpf import DeviceProgram
from gpuguard.model.accepted import accepted_code
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.lab.devices import Device
from tests.lab.errors import LabError
from tests.lab.node import Node

_TRIES = 10


def rules(cgroup: Path) -> frozenset[str]:
    """Return the rules in force for a container: the kernel's list, or what all its programs accept."""
    if (cgroup / "devices.list").exists():
        return frozenset((cgroup / "devices.list").read_text().splitlines())
    found = RuleSet(unrestricted=True)
    for program in read_programs(cgroup, effective=True):
        found = found.intersection(accepted_code(program.code))
    return frozenset(map(str, found)) if not found.unrestricted else frozenset(["a *:* rwm"])


def has(cgroup: Path, device: Device, access: str = "rw") -> bool:
    """Whether a rule in force lets a device be opened so."""
    return RuleSet.of(*rules(cgroup)).covers(Rule.parse(f"{device.rule} {access}"))


def programs(cgroup: Path, *, effective: bool = False) -> tuple[int, ...]:
    """Return the ids of the device programs on a cgroup v2, with `effective` also of those above it."""
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return bpf.query(directory, effective=effective)
    finally:
        os.close(directory)


def read_programs(cgroup: Path, *, effective: bool = False) -> list[DeviceProgram]:
    """Return the same programs as they are. Raises LabError where they change faster than they can be read."""
    for _ in range(_TRIES):
        with suppress(ProgramGoneError):  # replaced meanwhile
            return [bpf.program(number) for number in programs(cgroup, effective=effective)]
    raise LabError(f"the programs of {cgroup} change faster than they can be read")


def take_away(node: Node, scope: str, device: Device) -> None:
    """Take a device away as an administrator would; no signal tells of it.

    On v2 systemd is made to forget the device, whether it knew it or not, and writes its program anew.
    """
    if node.mode == "v1":
        (node.cgroup(scope) / "devices.deny").write_text(f"{device.rule} rwm")
    else:
        kept = [entry for entry in declared(node, scope) if f"{device.major}:{device.minor} " not in entry]
        settings = ["DeviceAllow=", *(f"DeviceAllow={entry}" for entry in kept)]
        node.run(["systemctl", "set-property", "--runtime", scope, *settings])
        node.carried_out()


@contextmanager
def writing(node: Node, text: str, path: str) -> Iterator[None]:
    """Have an administrator write to a file of the node, by a shell that is there for the time of the block.

    Who has written is looked up then: one that has ended cannot be told from others.
    """
    with node.daemon(["sh", "-c", f"echo {shlex.quote(text)} > {shlex.quote(path)}; sleep infinity; :"]):
        yield


def declared(node: Node, scope: str) -> Sequence[str]:
    """Return systemd's DeviceAllow entries of a unit, each as a unit file has it."""
    lines = node.run(["systemctl", "show", "--property=DeviceAllow", scope]).stdout.splitlines()
    return [line.partition("=")[2] for line in lines if line != "DeviceAllow="]
