"""A container's scope on a simulated node."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from gpuguard.model.ruleset import RuleSet

if TYPE_CHECKING:
    from tests.lab.sim.node import SimNode
    from tests.lab.sim.tree import Write


class SimScope:
    """One scope. Get it by `SimNode.scope()`.

    `group` is its path in the hierarchy, as /proc/PID/cgroup has it; `cgroup` is its directory.
    `pid` is the number of its one process, which exists nowhere else.
    """

    def __init__(self, node: SimNode, name: str, group: str, pid: int) -> None:
        self.name = name
        self.group = group
        self.cgroup: Path = node.path(f"/sys/fs/cgroup/devices{group}")
        self.pid = pid
        self._node = node

    def rules(self) -> RuleSet:
        """Return what devices.list says now."""
        return RuleSet.parse((self.cgroup / "devices.list").read_text())

    def write_rules(self, rules: Iterable[str], verb: str = "allow") -> None:
        """Write rules to devices.allow (or devices.deny) behind systemd's back, as NVIDIA's hook does."""
        for rule in rules:
            descriptor = os.open(self.cgroup / f"devices.{verb}", os.O_WRONLY | os.O_NONBLOCK)
            try:
                os.write(descriptor, rule.encode())
            finally:
                os.close(descriptor)
            self._node.control("settle")

    def writes(self) -> list[Write]:
        """Return every write to this scope's two files so far, with its writer and whether it was refused."""
        return [write for write in self._node.writes() if write.group == self.group]

    @property
    def drop_in(self) -> Path:
        """Where systemd keeps DeviceAllow once it was set at run time."""
        return self._node.path(f"/run/systemd/transient/{self.name}.d/50-DeviceAllow.conf")

    def stop(self) -> None:
        """End its process: systemd removes the scope and its cgroup."""
        self._node.control("end", name=self.name)
