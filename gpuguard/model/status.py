"""What `gpuguard status` tells of a node and its containers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from gpuguard.model.container_name import full_name
from gpuguard.model.rule import Rule
from gpuguard.model.state import State


@dataclass(frozen=True)
class DeviceStatus:
    """One entitled device rule. `effective` and `declared` are None when that cannot be told.

    `blocked`: a program that is not systemd's denies it, now and after a reload.
    """

    rule: Rule
    node: Optional[str]
    entitled_by: str
    effective: Optional[bool]
    declared: Optional[bool]
    blocked: bool = False


@dataclass(frozen=True)
class ContainerStatus:
    """One GPU container. `reason` says why the state is not better, where that is known.

    `excess` is what it may use without having been given it, `released` what it may still use although
    somebody had gpuguard forget it. `managed`: systemd's rewrites reach it.
    """

    scope: str
    cgroup: str
    id: str
    runtime: str
    state: State
    devices: tuple[DeviceStatus, ...] = ()
    excess: tuple[Rule, ...] = ()
    reason: Optional[str] = None
    released: tuple[Rule, ...] = ()
    name: Optional[str] = None
    namespace: Optional[str] = None
    pod: Optional[str] = None
    managed: bool = True

    @property
    def full_name(self) -> str:
        """What people call it: its name, in Kubernetes namespace/pod/name, or ""."""
        return full_name(self.namespace, self.pod, self.name)


@dataclass(frozen=True)
class NodeStatus:
    """The node: cgroup is "v1" or "v2", mode "enforce" or "observe", daemon "running", "stopped" or "unknown".

    `trouble` says what is wrong with the daemon or its configuration.
    """

    cgroup: str
    systemd: Optional[int]
    mode: str
    daemon: str
    containers: tuple[ContainerStatus, ...] = ()
    trouble: Optional[str] = None


def unmanaged(containers: Iterable[ContainerStatus]) -> tuple[str, ...]:
    """Say of how many containers nothing is declared since nothing can take their devices, and why."""
    reasons = Counter(one.reason for one in containers if not one.managed and one.state is State.PROTECTED)
    return tuple(f"{count} container{'s'[: count > 1]}: {reason}" for reason, count in reasons.items() if reason)
