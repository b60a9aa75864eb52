"""Made-up explanations of one Docker container."""

from __future__ import annotations

from typing import Any, Optional

from gpuguard.model.device_filter import DeviceFilter
from gpuguard.model.explanation import Comparison, Declaration, Denier, Explanation
from gpuguard.model.plan import Plan
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, NodeStatus
from gpuguard.model.unit import DevicePolicy
from tests.model.looks import rules

ID = "ab" * 32
NAME = ID[:12]
SCOPE = f"docker-{ID}.scope"
GROUP = f"/system.slice/{SCOPE}"
ROOT = {"v1": "/sys/fs/cgroup/devices", "v2": "/sys/fs/cgroup"}


def compared(line: str = "c 195:0 rw", **changes: Any) -> Comparison:  # noqa: ANN401 - any field of it
    """Return a rule that is entitled to, in force, declared and kept, but for the changes."""
    return Comparison(Rule.parse(line), **{"node": "/dev/nvidia0", **changes})


def lost(*denied_by: Denier, line: str = "c 195:0 rw", **changes: Any) -> Comparison:  # noqa: ANN401 - any field of it
    """Return a rule that is entitled to and denied."""
    return compared(line, effective=False, after_reload=False, denied_by=denied_by, **changes)


DECLARATION, NO_PLAN = Declaration(DevicePolicy.STRICT, 8), Plan()
UNDECLARED = compared(memory=False, disk=False, after_reload=False)
UNSPELT = compared("c *:77 rw", node=None, memory=False, disk=False, after_reload=False, hinders=True)


def explained(
    state: State,
    *comparisons: Comparison,
    cgroup: str = "v1",
    daemon: str = "running",
    mode: str = "enforce",
    systemd: Optional[int] = 252,
    reason: Optional[str] = None,
    excess: tuple[str, ...] = (),
    filters: Optional[tuple[DeviceFilter, ...]] = None,
    declaration: Optional[Declaration] = DECLARATION,
    plan: Plan = NO_PLAN,
    **changes: Any,  # noqa: ANN401 - any other field
) -> Explanation:
    """Return an explanation of a container with these rules, by default on a node where a daemon guards."""
    container = ContainerStatus(
        SCOPE, GROUP, ID, "docker", state, reason=reason, excess=tuple(sorted(rules(*excess), key=str))
    )
    node = NodeStatus(cgroup, systemd, mode, daemon)
    return Explanation(
        node, container, ROOT[cgroup], comparisons, filters, declaration=declaration, plan=plan, **changes
    )
