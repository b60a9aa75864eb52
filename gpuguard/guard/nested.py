"""Remembers what the control groups below a container's own have, and heals them after the container was struck (v1).

What was denied to the container the kernel has taken from them as well, and what is given back to it stays away from
them. They are not watched: a look does it, after the container itself is whole.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple, Optional

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, DeniedError, GpuguardError
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Scope
from gpuguard.kernel.nested_v1 import MOST_GROUPS, MOST_LEVELS
from gpuguard.model import nested
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.nested import GroupBelow, Groups
from gpuguard.model.rule import Rule

Keep = Callable[[Scope, Entitlement], None]

# Seconds between two readings of all lists below a container, however quick the rounds of the clock are.
_INTERVAL = 1.0


class _Seen(NamedTuple):
    """All groups below a container's own, and whether the container itself lacks nothing."""

    groups: list[GroupBelow]
    whole: bool


class _Written(NamedTuple):
    """What a group was given, what of it a group above denies, and how long that took, in seconds."""

    inode: int
    rules: frozenset[Rule]
    denied: frozenset[Rule]
    seconds: float


def strike(keep: Keep, scope: Scope, lost: frozenset[Rule]) -> None:
    """Note that the scope has lost rules: what the groups below had of them went as well."""
    entitled = scope.entitled
    if entitled is not None and entitled.nested and lost:
        _keep(keep, scope, nested.strike(entitled.nested, lost))


def due(parts: Parts, policy: Policy, scope: Scope) -> bool:
    """Whether a look would heal something, or remember something else. The clock asks; raises nothing."""
    entitled, now = scope.entitled, time.monotonic()
    if entitled is None or not _any(scope, entitled) or now - scope.counted_below < _INTERVAL:
        return False
    scope.counted_below = now
    if policy.enforce and nested.debts(entitled.nested):
        return True
    try:
        groups, _ = parts.devices.groups(scope.target.control_group)
    except GpuguardError:
        return True  # the look tells why
    return nested.remember(entitled.nested, _others(scope, groups), scope.owed, whole=True) != entitled.nested


async def look(parts: Parts, policy: Policy, scope: Scope, keep: Keep) -> None:
    """Heal what is owed, and remember what there is. Raises CgroupGoneError."""
    entitled = scope.entitled
    if entitled is None or not _any(scope, entitled):
        return
    try:
        seen = _look(parts, scope)
        if nested.shrunk(entitled.nested, seen.groups):
            # The sentinel may have given the scope back what was lost: then it tells so now.
            await parts.sentinel.caught_up()
            seen = _look(parts, scope)
        known = _known(scope)
        if policy.enforce and seen.whole and nested.debts(known):
            seen, known = _heal(parts, scope, seen, known)
    except CgroupUnreadableError as error:  # nothing is concluded
        parts.recorder.troubles.met(scope.target.control_group, error)
        return
    _keep(keep, scope, nested.remember(known, seen.groups, scope.owed, whole=seen.whole))


def _any(scope: Scope, entitled: Entitlement) -> bool:
    return bool(entitled.nested) or (scope.seen is not None and scope.seen.nested)


def _look(parts: Parts, scope: Scope) -> _Seen:
    """Read all lists, the scope's own last: what it lacks then may be missing below for the same reason."""
    control_group = scope.target.control_group
    groups, cut = parts.devices.groups(control_group)
    if cut:
        why = f"more than {MOST_GROUPS} control groups, or more than {MOST_LEVELS} levels of them, are below"
        what = "those beyond are not healed when the container loses devices"
        parts.recorder.troubles.met(f"{control_group}/*", CgroupUnreadableError(f"{control_group}: {why}: {what}"))
    own = parts.devices.read(control_group, scope.owed)
    return _Seen(_others(scope, groups), not own.rules.missing(scope.owed))


def _others(scope: Scope, groups: list[GroupBelow]) -> list[GroupBelow]:
    """Leave out the container's own group, whose list is guarded as the scope's."""
    payload = scope.seen.payload if scope.seen is not None else None
    return [group for group in groups if payload is None or group.inode != payload.inode]


def _heal(parts: Parts, scope: Scope, before: _Seen, known: Groups) -> tuple[_Seen, Groups]:
    """Write what is owed, the upper groups first; return what was read back, and what is known after that.

    What another group in there denies is its own business, and not owed any more.
    """
    now = {group.path: group for group in before.groups}
    written: dict[str, _Written] = {}
    for group in nested.debts(known):
        there = now.get(group.path)
        if there is not None and there.inode == group.inode:
            written[group.path] = _write(parts, scope, there, there.rules.missing(group.owed))
    began = time.monotonic()
    after = _look(parts, scope)
    _tell(parts, scope, after, written)
    if after.whole:  # else it is the scope that denies, for the moment
        _count(parts, after, written, time.monotonic() - began)
        known = tuple(
            replace(group, owed=group.owed - written[group.path].denied) if group.path in written else group
            for group in known
        )
    return after, known


def _write(parts: Parts, scope: Scope, group: GroupBelow, rules: frozenset[Rule]) -> _Written:
    """Write rules into a group below."""
    began = time.monotonic()
    refusals = {rule: _refusal(parts, scope, group, rule) for rule in sorted(rules, key=lambda rule: rule.sort_key)}
    for why in filter(None, refusals.values()):
        parts.recorder.troubles.met(f"{scope.target.control_group}/{group.path}", why)
    denied = frozenset(rule for rule, why in refusals.items() if isinstance(why, DeniedError))
    return _Written(group.inode, rules, denied, time.monotonic() - began)


def _refusal(parts: Parts, scope: Scope, group: GroupBelow, rule: Rule) -> Optional[GpuguardError]:
    target = scope.target
    try:
        parts.devices.allow_below(target.control_group, target.inode, (group.path, group.inode), rule)
    except CgroupGoneError:  # the next look tells what is left
        return None
    except GpuguardError as error:
        return error
    return None


def _count(parts: Parts, after: _Seen, written: dict[str, _Written], reading: float) -> None:
    """Count each group that was written and is there still; what other groups in there deny is no failure."""
    for group in after.groups:
        deed = written.get(group.path)
        if deed is not None and deed.inode == group.inode and deed.rules - deed.denied:
            failed = bool(group.rules.missing(deed.rules - deed.denied))
            parts.recorder.metrics.repair("write", "failed" if failed else "ok", deed.seconds + reading)


def _tell(parts: Parts, scope: Scope, after: _Seen, written: dict[str, _Written]) -> None:
    healed: defaultdict[Rule, list[str]] = defaultdict(list)
    deeds: list[tuple[Rule, str]] = []
    for group in after.groups:
        rules = written[group.path].rules if group.path in written else frozenset[Rule]()
        for rule in rules - group.rules.missing(rules):
            healed[rule].append(group.path)
            deeds.append((rule, group.path))
    scope.deeds += nested.deeds(deeds)
    if healed:
        parts.recorder.restored_below(scope, healed, sorted({path for paths in healed.values() for path in paths}))


def _known(scope: Scope) -> Groups:
    """Return what is known by now: the sentinel may have told of something meanwhile."""
    entitled: Optional[Entitlement] = scope.entitled
    return entitled.nested if entitled is not None else ()


def _keep(keep: Keep, scope: Scope, known: Groups) -> None:
    entitled = scope.entitled
    if entitled is not None and known != entitled.nested:
        keep(scope, replace(entitled, nested=known))
