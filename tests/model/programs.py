"""Made-up looks at a scope on cgroup v2: the programs on it, and on what is above and below it."""

from __future__ import annotations

from typing import Optional

from gpuguard.model.device_filter import DeviceFilter, Owner, accepted_by_all
from gpuguard.model.observation import Declared, Observation
from gpuguard.model.ruleset import RuleSet
from tests.model.looks import GROUP, SCOPE

SLICE = "/system.slice"


def runtime(*lines: str, on: str = GROUP, exact: bool = True) -> DeviceFilter:
    """Return the runtime's program for some rules."""
    return DeviceFilter(on, 11, Owner.RUNTIME, RuleSet.of(*lines), exact)


def systemd(*lines: str, on: str = GROUP) -> DeviceFilter:
    """Return systemd's program for some rules."""
    return DeviceFilter(on, 12, Owner.SYSTEMD, RuleSet.of(*lines))


def unknown(*lines: str, on: str = GROUP) -> DeviceFilter:
    """Return a program that may be anybody's."""
    return DeviceFilter(on, 13, Owner.UNKNOWN, RuleSet.of(*lines))


def look_at(
    *filters: DeviceFilter,
    declared: Optional[Declared] = None,
    refusal: Optional[str] = None,
    at: float = 100.0,
    started: Optional[float] = None,
) -> Observation:
    """Return a look at docker-x.scope on cgroup v2."""
    return Observation(
        unit=SCOPE,
        control_group=GROUP,
        inode=7,
        at=at,
        effective=accepted_by_all(filters),
        declared=declared,
        started=started,
        refusal=refusal,
        writable=False,
        filters=filters,
    )
