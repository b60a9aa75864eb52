"""Containers of systemd-nspawn in a node, registered with systemd-machined, which the bus starts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from tests.lab import image
from tests.lab.containers import place
from tests.lab.devices import Device
from tests.lab.errors import LabError
from tests.lab.machine import missing
from tests.lab.node import Node
from tests.lab.poll import until

_IMAGES = "/var/lib/machines"
_SLEEP = ("/bin/sleep", "1000000")
# As systemd-nspawn@.service has it (units/systemd-nspawn@.service.in), without what is for images in files.
_PROPERTIES = ("Delegate=yes", "DevicePolicy=closed", "DeviceAllow=char-pts rw")

WAYS = ("scope", "unit", "template")
"""Who holds a machine: a scope of its own, the service that nspawn runs in (--keep-unit), systemd-nspawn@.service."""


class Machine:
    """A running container that sleeps. Get it by `Nspawn.run()`."""

    def __init__(self, node: Node, name: str) -> None:
        self.node = node
        self.name = name
        self.scope = self._show("Unit")
        """Its unit, which may be a service."""
        self.pid = int(self._show("Leader"))
        """Its first process, by its number in the node."""
        self.cgroup: Path = node.cgroup(self.scope)
        """The devices cgroup (v1) or the cgroup (v2) of its unit, seen from outside: that has its device rules."""
        self.inside: Path = place(node, self.pid)
        """The same of its first process: on v2 a group below the unit's."""

    def _show(self, name: str) -> str:
        return self.node.run(["machinectl", "show", f"--property={name}", "--value", self.name]).stdout.strip()


class Nspawn:
    """Starts machines in a node."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._machines: list[Machine] = []

    @staticmethod
    def why_not() -> Optional[str]:
        """Say which program this machine lacks, or return None."""
        return missing("systemd-nspawn", "machinectl", "busybox")

    def run(self, name: str, devices: Sequence[Device] = (), how: str = "scope") -> Machine:
        """Start a machine in one of the `WAYS`, with these devices declared for its unit (none with "scope").

        Raises LabError with what was said.
        """
        reason = self.why_not()
        if reason is not None:
            raise LabError(f"cannot start a machine: {reason}")
        if how == "scope" and devices:
            raise LabError("nspawn has systemd make the scope, and lets nobody give devices to it")
        self._load(name)
        {"scope": self._scope, "unit": self._unit, "template": self._template}[how](name, devices)
        until(lambda: self._known(name), 20, f"machine {name}")
        machine = Machine(self.node, name)
        self._machines.append(machine)
        return machine

    def clear(self) -> None:
        """End all machines that were started here."""
        for machine in self._machines:
            self.node.run(["machinectl", "kill", "--signal=KILL", machine.name], check=False)
        for machine in self._machines:
            until(lambda name=machine.name: not self._known(name), 20, f"the end of machine {machine.name}")  # type: ignore[misc]
            until(lambda gone=machine.cgroup: not gone.exists(), 20, f"the end of {machine.scope}")  # type: ignore[misc]
        self._machines.clear()
        self.node.run(["systemctl", "reset-failed"], check=False)

    def _scope(self, name: str, _: Sequence[Device]) -> None:
        self._serve(name, _command(name))

    def _unit(self, name: str, devices: Sequence[Device]) -> None:
        settings = [f"--property={text}" for text in _settings(devices)]
        self._serve(name, [*_command(name), "--keep-unit"], "--slice=machine.slice", *settings)

    def _template(self, name: str, devices: Sequence[Device]) -> None:
        unit = f"systemd-nspawn@{name}.service"
        drop_in = self.node.path(f"/etc/systemd/system/{unit}.d/lab.conf")
        drop_in.parent.mkdir(parents=True)
        command = shlex.join([*_command(name), "--keep-unit", *_SLEEP])
        lines = ["[Service]", "ExecStart=", f"ExecStart={command}", *_settings(devices)]
        drop_in.write_text("\n".join(lines) + "\n", encoding="ascii")
        self.node.run(["systemctl", "daemon-reload"])
        self.node.run(["systemctl", "start", unit])

    def _serve(self, name: str, command: Sequence[str], *options: str) -> None:
        ways = [f"--unit=lab-{name}.service", "--collect", "--service-type=notify", "--property=KillMode=mixed"]
        self.node.run(["systemd-run", *ways, *options, *command, *_SLEEP])

    def _known(self, name: str) -> bool:
        return self.node.run(["machinectl", "show", name], check=False).returncode == 0

    def _load(self, name: str) -> None:
        root = f"{_IMAGES}/{name}"
        if not self.node.path(root).exists():
            self.node.path(root).mkdir(parents=True)
            self.node.run(["tar", "-x", "-C", root], stdin=image.archive())


def _command(name: str) -> list[str]:
    ways = ["--quiet", "--register=yes", "--as-pid2", f"--machine={name}", f"--directory={_IMAGES}/{name}"]
    return ["/usr/bin/systemd-nspawn", *ways]


def _settings(devices: Sequence[Device]) -> list[str]:
    return [*_PROPERTIES, *(f"DeviceAllow={device.path} rw" for device in devices)]
