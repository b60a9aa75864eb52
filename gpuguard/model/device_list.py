"""What the kernel allows in one control group, and on cgroup v2 which programs say so."""

from __future__ import annotations

from dataclasses import dataclass

from gpuguard.model.device_filter import DeviceFilter
from gpuguard.model.ruleset import RuleSet


@dataclass(frozen=True)
class DeviceList:
    """One reading of a control group, which is known by its inode.

    On cgroup v2 `rules` is what all `filters` accept together.
    """

    inode: int
    rules: RuleSet
    filters: tuple[DeviceFilter, ...] = ()
