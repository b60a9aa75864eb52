"""The control groups that a container has made below its own (cgroup v1): what they had, and what they are owed.

The kernel takes what is denied to a group from all groups below it, and gives it back to that group alone
(security/device_cgroup.c, propagate_exception). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Optional

from gpuguard.model.clean import clean
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet, largest_rules


@dataclass(frozen=True)
class GroupBelow:
    """A control group below a scope as it is now. `path` is relative to the scope: "docker/4f6a"."""

    path: str
    inode: int
    rules: RuleSet


@dataclass(frozen=True)
class Nested:
    """What one of them had, of what its scope is entitled to. It is its inode, not its name.

    `owed` was taken from it along with the scope, and is not back yet.
    """

    path: str
    inode: int
    rules: frozenset[Rule]
    owed: frozenset[Rule] = frozenset()


Groups = tuple[Nested, ...]

# A container may make hundreds of groups, with long names.
MOST_TOLD = 15


def remember(known: Iterable[Nested], seen: Iterable[GroupBelow], entitled: frozenset[Rule], *, whole: bool) -> Groups:
    """Return what is to be known of the groups that were seen; one that is gone is forgotten.

    What a group lacks while its scope is `whole` was taken by whoever lives in there, or was never given: that is
    its own business. While the scope is not whole what the group had before stays known.
    """
    before, allowed = {group.path: group for group in known}, RuleSet(entitled)
    now = (_remembered(_same(before.get(group.path), group), group, allowed, whole=whole) for group in seen)
    return tuple(sorted((group for group in now if group.rules or group.owed), key=lambda group: group.path))


def _same(known: Optional[Nested], seen: GroupBelow) -> Optional[Nested]:
    return known if known is not None and known.inode == seen.inode else None


def _remembered(known: Optional[Nested], seen: GroupBelow, allowed: RuleSet, *, whole: bool) -> Nested:
    # A group without a filter is below none that has one.
    rules = frozenset[Rule]() if seen.rules.unrestricted else allowed.intersection(seen.rules).rules
    if known is None:
        return Nested(seen.path, seen.inode, rules)
    if not whole:
        rules = largest_rules(rules | _within(known.rules, allowed))
    return Nested(seen.path, seen.inode, rules, seen.rules.missing(_within(known.owed, allowed)))


def _within(rules: frozenset[Rule], allowed: RuleSet) -> frozenset[Rule]:
    return RuleSet(rules).intersection(allowed).rules


def strike(known: Groups, lost: frozenset[Rule]) -> Groups:
    """Return what is known after the scope has lost rules: each group is owed what of these it had itself."""
    return tuple(replace(group, owed=_owed(group, lost)) for group in known)


def _owed(group: Nested, lost: frozenset[Rule]) -> frozenset[Rule]:
    return largest_rules(group.owed | _within(group.rules, RuleSet(lost)))


def without(known: Groups, devices: frozenset[str]) -> Groups:
    """Return what is known without `devices` ("c 195:0"), which were taken on purpose and for good."""
    left = (replace(group, rules=_other(group.rules, devices), owed=_other(group.owed, devices)) for group in known)
    return tuple(group for group in left if group.rules or group.owed)


def _other(rules: frozenset[Rule], devices: frozenset[str]) -> frozenset[Rule]:
    return frozenset(rule for rule in rules if rule.device not in devices)


def debts(known: Groups) -> list[Nested]:
    """Return the groups that are owed something, each after those that it is below."""
    return sorted((group for group in known if group.owed), key=lambda group: (group.path.count("/"), group.path))


def shrunk(known: Groups, seen: Iterable[GroupBelow]) -> bool:
    """Whether a group has less than it was known to have: whoever has seen its scope lose it is to be heard first."""
    now = {group.path: group for group in seen}
    return any(
        group.path in now and now[group.path].inode == group.inode and now[group.path].rules.missing(group.rules)
        for group in known
    )


def deeds(written: Sequence[tuple[Rule, str]]) -> list[str]:
    """Return for people which rule was written to which group, or would be: some of them, and how many more."""
    told = [f"write {rule} to {clean(path)}" for rule, path in written[:MOST_TOLD]]
    more = len(written) - MOST_TOLD
    return [*told, f"write to groups inside {more} times more"] if more > 0 else told
