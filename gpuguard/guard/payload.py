"""What is written to a scope or to the container's own group below it (cgroup v1, crun) is one container's list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.errors import GpuguardError
from gpuguard.guard.parts import Parts
from gpuguard.guard.scope import Scope
from gpuguard.model.device_list import Payload
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Write


def scope_of(scopes: Mapping[str, Scope], write: Write) -> Optional[Scope]:
    """Return the scope whose list, or whose container's list, was written; None for any other."""
    scope = scopes.get(write.control_group)
    if scope is not None:
        return scope if scope.target.inode == write.inode else None
    scope = scopes.get(str(PurePosixPath(write.control_group).parent))
    written = Payload(write.control_group, write.inode)
    return scope if scope is not None and scope.payload == written else None


def of_the_container(parts: Parts, scope: Scope, write: Write) -> Write:
    """Return a write as one to the container's list, under the name of its scope.

    What a scope is denied the kernel takes from the container's group as well, where only a look gives it back; a
    scope without a filter does not even show it. So the container's list is read now, for what came of it.
    """
    target = scope.target
    if write.control_group != target.control_group:
        return replace(write, control_group=target.control_group, inode=target.inode)
    if scope.payload is None:
        return write
    before, after = scope.effective, None
    try:
        after = parts.devices.read(target.control_group, scope.owed).rules
    except GpuguardError as error:
        parts.recorder.troubles.met(target.control_group, error)
    if before is not None and not before.unrestricted and scope.outage is None:
        # A look may have come between, and seen what is missing now.
        before = RuleSet(before.rules | scope.owed)
        after = None if after is None else _without_side_effects(before, after, scope.owed)
    return replace(write, before=before, after=after, restored=frozenset(), whole_at=None)


def _without_side_effects(before: RuleSet, after: RuleSet, owed: frozenset[Rule]) -> RuleSet:
    """Return what is left when one device is denied, and what the kernel takes for that as well.

    A scope that allows by default and denies one device does not have all of `c *:* m` any more, whereupon the kernel
    takes that rule from the groups below (revalidate_active_exceptions).
    """
    lost = [replace(rule, access=Access.RWM) for rule in after.missing(owed)]
    others = after.missing(before.rules) - owed
    return RuleSet(after.rules.union(rule for rule in others if any(map(rule.meet, lost))))
