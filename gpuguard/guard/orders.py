"""What the sentinel is told of a scope: what to give back there at once, and whether its list is still being filled."""

from __future__ import annotations

import time
from dataclasses import replace

from gpuguard.errors import GpuguardError
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Scope
from gpuguard.model.rule import Rule
from gpuguard.model.write import Watched

# Seconds in which a scope without devices may yet be given some: a driver that must be loaded first takes its time.
_YOUNG = 60.0


def due(parts: Parts, scope: Scope) -> bool:
    """Whether a scope is watched that turned out to have no devices. The clock asks."""
    return scope.entitled is None and not _young(scope) and parts.sentinel.watches(scope.target.control_group)


def give(parts: Parts, policy: Policy, scope: Scope) -> None:
    """Tell the sentinel what the scope is entitled to and what of it systemd is not known to write itself.

    Only on cgroup v1 can it give anything back. Of a list that cannot be read it keeps what it was told. One that
    counts for nobody, since the container is in another group, is not watched; `docker exec` puts processes into it.
    """
    if not parts.devices.writable or scope.effective is None:
        return
    target = scope.target
    if scope.record.elsewhere is not None and not _inhabited(parts, scope):
        parts.sentinel.forget(target.control_group)
        forget_payload(parts, scope)
        return
    if scope.entitled is None or scope.effective.unrestricted:
        if _young(scope):
            _watch(parts, scope, Watched(target.control_group, target.inode, heal=False, growing=True))
        else:
            parts.sentinel.forget(target.control_group)
            forget_payload(parts, scope)
        return
    known = _declared(parts, scope, scope.owed)
    scope.paused = not scope.backoff.may_repair(time.monotonic())
    # What another run of a service lacks was not taken from it: only a look can tell, which asks systemd.
    heal = policy.enforce and not scope.paused and not scope.restarts
    unknown = scope.owed - known
    growing = not scope.entitled.settled
    _watch(parts, scope, Watched(target.control_group, target.inode, unknown, known, heal, growing))


def _watch(parts: Parts, scope: Scope, watched: Watched) -> None:
    """Have a scope watched, and the container's own group below it: what is denied to the one is denied to both.

    The same rules for both: a scope without a filter lacks none of them. systemd writes nothing to the group below:
    what that lacks nobody else gives back.
    """
    payload = scope.seen.payload if scope.seen is not None else None
    if payload != scope.payload:
        forget_payload(parts, scope)
    scope.payload = payload
    parts.sentinel.watch(watched)
    if payload is not None:
        group, inode, rules = payload.control_group, payload.inode, watched.undeclared | watched.declared
        parts.sentinel.watch(replace(watched, control_group=group, inode=inode, undeclared=rules, declared=frozenset()))


def forget_payload(parts: Parts, scope: Scope) -> None:
    """Have the container's own group below its scope watched no more."""
    if scope.payload is not None:
        parts.sentinel.forget(scope.payload.control_group)
        scope.payload = None


def _declared(parts: Parts, scope: Scope, entitled: frozenset[Rule]) -> frozenset[Rule]:
    """Return what systemd is known to write itself; when it does not answer, what it last was."""
    declared = scope.view.declared if scope.view is not None else None
    if declared is None:
        return parts.sentinel.declared(scope.target.control_group) & entitled
    return frozenset(rule for rule in entitled if declared.covers(rule))


def _young(scope: Scope) -> bool:
    return time.monotonic() - scope.known_since < _YOUNG


def _inhabited(parts: Parts, scope: Scope) -> bool:
    try:
        return parts.devices.populated(scope.target.control_group)
    except GpuguardError:  # the look tells why
        return True
