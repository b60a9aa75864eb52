"""The BPF device programs in force on a cgroup v2: whose each is, and which of them denies. Pure."""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet

# systemd's name for its programs since v251 (bpf-devices.c). Those of runc, crun and NVIDIA's hook have none.
_SYSTEMD = "sd_devices"


class Owner(str, enum.Enum):
    """Who attached a program, as far as its name and its licence tell."""

    SYSTEMD = "systemd"
    RUNTIME = "runtime"
    UNKNOWN = "unknown"

    @classmethod
    def of(cls, name: str, *, gpl_compatible: bool) -> Owner:
        """Tell by a program's name and licence.

        runc (libcontainer's devicefilter) and NVIDIA's hook (nvcgo) load theirs as "Apache"; systemd and crun as
        "GPL", and up to v250 without a name, so that those two cannot be told apart.
        """
        if name == _SYSTEMD:
            return cls.SYSTEMD
        return cls.UNKNOWN if gpl_compatible or name else cls.RUNTIME


@dataclass(frozen=True)
class DeviceFilter:
    """One program on one control group, and what it accepts.

    `exact`: `rules` is all that it accepts; else it was only asked about some devices, and these are those that it
    accepts of them.
    """

    control_group: str
    program: int
    owner: Owner
    rules: RuleSet
    exact: bool = True

    def __str__(self) -> str:
        """Name it for people."""
        return named(self.owner, self.program, self.control_group)


def named(owner: Owner, program: int, control_group: str) -> str:
    """Name a program for people."""
    whose = {Owner.SYSTEMD: "systemd's program", Owner.RUNTIME: "the runtime's program"}.get(owner, "program")
    return f"{whose} {program} on {control_group}"


# Most containers of a node have one of a few lists.
@functools.lru_cache(maxsize=256)
def both(one: RuleSet, other: RuleSet) -> RuleSet:
    """Return what both let through."""
    return one.intersection(other)


def accepted_by_all(filters: Iterable[DeviceFilter]) -> RuleSet:
    """Return what all of them accept: without any, everything."""
    rules = RuleSet(unrestricted=True)
    for entry in filters:
        rules = both(rules, entry.rules)
    return rules


def own(filters: Iterable[DeviceFilter], control_group: str) -> tuple[DeviceFilter, ...]:
    """Return those on a control group itself and below it: the container's own, not those of its slices."""
    return tuple(entry for entry in filters if entry.control_group == control_group or _below(entry, control_group))


def of_systemd(filters: Iterable[DeviceFilter], control_group: str) -> tuple[DeviceFilter, ...]:
    """Return the programs that systemd replaces when the unit of this control group changes.

    Where none is known to be systemd's, those that may be.
    """
    there = [entry for entry in filters if entry.control_group == control_group]
    known = tuple(entry for entry in there if entry.owner is Owner.SYSTEMD)
    return known or tuple(entry for entry in there if entry.owner is Owner.UNKNOWN)


def given(filters: Iterable[DeviceFilter], control_group: str, unit_group: str = "") -> Optional[RuleSet]:
    """Return what a container would have without systemd's program: what its runtime gave it.

    `unit_group` is the control group of its unit where the container is in one below.
    None when no program on the group itself is known to be the runtime's. What is on a group below may be the
    container's own work: there (crun) its cgroup namespace begins, so that a program of its own can replace the
    runtime's, and systemd's, above, is the one that it cannot reach.
    """
    filters = tuple(filters)
    systemds = of_systemd(filters, unit_group or control_group)
    others = [entry for entry in filters if entry not in systemds]
    if not any(entry.owner is Owner.RUNTIME and entry.control_group == control_group for entry in others):
        return None
    return accepted_by_all(others)


def without_groups_below(filters: Iterable[DeviceFilter], control_group: str) -> tuple[DeviceFilter, ...]:
    """Return those that are in force on a control group itself, whatever a group below it has."""
    return tuple(entry for entry in filters if not _below(entry, control_group))


def _below(entry: DeviceFilter, control_group: str) -> bool:
    return entry.control_group.startswith(control_group + "/")


def denying(filters: Iterable[DeviceFilter], rule: Rule) -> tuple[DeviceFilter, ...]:
    """Return the programs that do not accept all that a rule asks for."""
    return tuple(entry for entry in filters if not entry.rules.covers(rule))
