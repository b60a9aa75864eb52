"""Made-up examinations of a node."""

from __future__ import annotations

from typing import Any, Optional

from gpuguard.model.doctor import Examination, Links, Versions
from gpuguard.model.reports import SourceReport
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, NodeStatus
from gpuguard.model.write import Standing

NAMES = ("monitor", "sentinel", "signals", "units")
UP = tuple(SourceReport(name, up=True) for name in NAMES)
ID = "ab" * 32


def container(state: State, name: Optional[str] = "trainer", reason: Optional[str] = None) -> ContainerStatus:
    """Return a Docker container in a state."""
    scope = f"docker-{ID}.scope"
    return ContainerStatus(scope, f"/system.slice/{scope}", ID, "docker", state, name=name, reason=reason)


def examined(
    *containers: ContainerStatus,
    cgroup: str = "v1",
    systemd: Optional[int] = 252,
    mode: str = "enforce",
    daemon: str = "running",
    trouble: Optional[str] = None,
    version: Optional[str] = "1.0",
    **changes: Any,  # noqa: ANN401 - any other field
) -> Examination:
    """Return what was found out of a node where all is well, but for the changes."""
    facts: dict[str, Any] = {
        "versions": Versions("1.0", "3.11.7", "6.1.0", version, systemd),
        "node": NodeStatus(cgroup, systemd, mode, daemon, containers, trouble),
        "sources": UP,
        "standing": Standing("rr"),
        "links": Links(("/dev/nvidia0",)),
    }
    return Examination(**{**facts, **changes})
