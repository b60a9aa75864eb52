"""The three lists of one scope, as read at one moment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from gpuguard.model.device_filter import DeviceFilter, given, own
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.unit import DeviceAllow, DevicePolicy


@dataclass(frozen=True)
class Declared:
    """What systemd will write next time.

    A property change makes it write what it has in memory. A reload reads the unit's files first:
    `disk` is what they say, None where that is known to be the same. Two that mean the same rules are equal
    however they spell them: each reload turns the order of the entries round (systemd 252).
    """

    memory: RuleSet
    disk: Optional[RuleSet] = None
    policy: DevicePolicy = DevicePolicy.STRICT
    entries: tuple[DeviceAllow, ...] = field(default=(), compare=False)

    @property
    def after_reload(self) -> RuleSet:
        """What a reload makes systemd write: also an empty list is one."""
        return self.memory if self.disk is None else self.disk

    def covers(self, rule: Rule) -> bool:
        """Whether systemd would write `rule` now, and after a reload too."""
        return self.memory.covers(rule) and self.after_reload.covers(rule)


@dataclass(frozen=True)
class Observation:
    """One look at one scope.

    `effective` and `declared` are None when they cannot be told; `trouble` says why.
    `refusal` says why systemd must not be told anything about this unit, None when it may be.
    `at` and `started` are seconds of CLOCK_MONOTONIC. `writable` is whether the kernel has a list that can be written
    (cgroup v1); else `filters` are the programs that make up `effective`. `starting` is whether the runtime had, before
    the list was read, not yet begun the container's own program; None where that cannot be told or was not asked.
    `managed` is whether systemd's rewrites reach the container; `unit_group` is the control group of its unit where the
    container is in one below. `elsewhere` is the control group whose rules count for it, where those of its own do not.
    """

    unit: str
    control_group: str
    inode: int
    at: float
    effective: Optional[RuleSet]
    declared: Optional[Declared]
    invocation: str = ""
    started: Optional[float] = None
    refusal: Optional[str] = None
    trouble: Optional[str] = None
    writable: bool = True
    filters: tuple[DeviceFilter, ...] = ()
    starting: Optional[bool] = None
    managed: bool = True
    unit_group: str = ""
    elsewhere: Optional[str] = None

    @property
    def systemds_group(self) -> str:
        """The control group that systemd writes device rules for."""
        return self.unit_group or self.control_group

    @property
    def unrestricted(self) -> bool:
        """Whether the scope has no device filter of its own, whatever its slices have."""
        if self.effective is None:
            return False
        return self.effective.unrestricted or not (self.writable or own(self.filters, self.control_group))

    @property
    def given(self) -> Optional[RuleSet]:
        """What the runtime gave, as far as the kernel tells: on cgroup v2 its own program, else what is in force.

        A service that runs again may keep its control group, and with it the program of a hook of its last run.
        """
        if self.managed and not self.unit_group and not self.unit.endswith(".scope"):
            return self.effective
        rules = given(self.filters, self.control_group, self.unit_group)
        return self.effective if rules is None or rules.unrestricted else rules
