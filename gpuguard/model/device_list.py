"""What the kernel allows in one control group, and on cgroup v2 which programs say so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from gpuguard.model.device_filter import DeviceFilter
from gpuguard.model.ruleset import RuleSet


@dataclass(frozen=True)
class Payload:
    """The control group below a scope that the runtime has put the container into, as crun does."""

    control_group: str
    inode: int


@dataclass(frozen=True)
class DeviceList:
    """One reading of a control group, which is known by its inode.

    On cgroup v2 `rules` is what all `filters` accept together. On v1 it is the list of the container's `payload` where
    there is one. `nested` is whether there are control groups below, those apart (v1).
    """

    inode: int
    rules: RuleSet
    filters: tuple[DeviceFilter, ...] = ()
    payload: Optional[Payload] = None
    nested: bool = False
