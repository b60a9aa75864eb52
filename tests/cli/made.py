"""Made-up nodes and containers to show."""

from __future__ import annotations

from typing import Optional

from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, DeviceStatus, NodeStatus

ID = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"


def device(
    minor: int = 0, *, node: Optional[str] = "", effective: Optional[bool] = True, declared: Optional[bool] = True
) -> DeviceStatus:
    """Return /dev/nvidia<minor> with read and write access; a `node` of None is one without a name."""
    path = f"/dev/nvidia{minor}" if node == "" else node
    return DeviceStatus(Rule.parse(f"c 195:{minor} rw"), path, "ledger", effective, declared)


def container(name: Optional[str], state: State, *devices: DeviceStatus) -> ContainerStatus:
    """Return a Docker container in a state."""
    scope = f"docker-{ID}.scope"
    return ContainerStatus(scope, f"/system.slice/{scope}", ID, "docker", state, devices, name=name)


def node(*containers: ContainerStatus, daemon: str = "running") -> NodeStatus:
    """Return a node with these containers."""
    return NodeStatus("v1", 252, "enforce", daemon, containers)
