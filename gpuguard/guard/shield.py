"""The permanent shield ([guard] shield, cgroup v1): when it is raised, when it stays, and when it goes.

It is the empty child that a declaration makes for a moment, kept: systemd's deny-all gets EINVAL at every rewrite.
It takes nothing and gives nothing; all that it may keep from is one more control group, and systemd's tightening.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from gpuguard.errors import BusError, CgroupUnreadableError, GpuguardError
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Scope
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.model.backoff import Backoff
from gpuguard.model.state import State

_WHOLE = (State.PROTECTED, State.AT_RISK)
# A stop waits so long, in seconds, for systemd to have answered what it was told before.
_STOP = 2.0


def wanted(policy: Policy, scope: Scope) -> bool:
    """Whether a shield may stand at a scope for good.

    Not where another run of a service could inherit the list that it keeps, and not where somebody wants devices gone.
    """
    entitled = scope.entitled
    if not policy.shield or entitled is None or scope.restarts or not scope.target.is_unit:
        return False
    kept = entitled.settled and bool(entitled.rules) and not entitled.released
    return kept and scope.state is not State.UNRESTRICTED


def due(parts: Parts, policy: Policy, scope: Scope) -> bool:
    """Whether a look would raise or remove a shield. The clock asks; raises nothing."""
    if not policy.enforce:
        return False
    try:
        standing = parts.devices.shielded(scope.target.control_group)
        if wanted(policy, scope):
            return not standing and _may_stand(parts, policy, scope)
    except GpuguardError:
        return True  # the look tells why
    return standing and _pace(policy, scope).may_repair(time.monotonic())


def stands(parts: Parts, policy: Policy, scope: Scope) -> bool:
    """Whether the shield is there, and for good."""
    return wanted(policy, scope) and parts.devices.shielded(scope.target.control_group)


def raise_if_due(parts: Parts, policy: Policy, scope: Scope) -> None:
    """Raise the shield of a scope that should have one and is whole: a list without something is not to be kept.

    Raises CgroupGoneError.
    """
    devices, target = parts.devices, scope.target
    if policy.enforce and wanted(policy, scope) and not devices.shielded(target.control_group):
        try:
            if _may_stand(parts, policy, scope):
                _count(parts, policy, scope)
                devices.shield(target.control_group, target.inode)
                if not devices.populated(target.control_group):
                    # systemd is about to remove the group, and would not see a child that came too late.
                    devices.unshield(target.control_group, target.inode)
        except CgroupUnreadableError as error:
            parts.recorder.troubles.met(target.control_group, error)
    scope.shielded = stands(parts, policy, scope)


async def remove_unwanted(parts: Parts, policy: Policy, scope: Scope) -> None:
    """Remove a shield that is not to stand: left behind, switched off, of a container that has ended.

    Raises CgroupGoneError.
    """
    control_group = scope.target.control_group
    scope.shielded = False
    try:
        if not policy.enforce or not parts.devices.shielded(control_group):
            return
        if wanted(policy, scope) and parts.devices.populated(control_group):
            return
        if _pace(policy, scope).may_repair(time.monotonic()) and await _remove(parts, scope):
            _count(parts, policy, scope)
    except (BusError, CgroupUnreadableError) as error:
        parts.recorder.troubles.met(control_group, error)


async def remove_all(parts: Parts, policy: Policy, scopes: Iterable[Scope]) -> None:
    """Remove the shields at a stop, when no look is under way. What cannot be removed in time stays; raises nothing.

    One below which systemd may yet carry out a declaration waits for systemd, the others wait for nobody.
    """
    if not policy.enforce:
        return
    waiting = []
    for scope in scopes:
        target = scope.target
        try:
            if not parts.devices.shielded(target.control_group):
                continue
            if scope.outstanding or scope.view is None or scope.view.declared is None:
                waiting.append(scope)
            elif parts.devices.unshield(target.control_group, target.inode):
                parts.recorder.shield_removed(scope)
        except GpuguardError as error:
            parts.recorder.troubles.met(target.control_group, error)
    if waiting:
        await asyncio.wait([asyncio.ensure_future(_remove_in_time(parts, scope)) for scope in waiting])


async def _remove_in_time(parts: Parts, scope: Scope) -> None:
    try:
        await asyncio.wait_for(_remove(parts, scope), _STOP)
    except asyncio.TimeoutError:
        why = "the shield stays: systemd does not answer"
        parts.recorder.troubles.met(scope.target.control_group, BusError(f"{scope.target.control_group}: {why}"))
    except GpuguardError as error:
        parts.recorder.troubles.met(scope.target.control_group, error)


async def _remove(parts: Parts, scope: Scope) -> bool:
    removed = await parts.mender.remove_left_shield(scope.target)
    if removed:
        scope.outstanding = False
        parts.recorder.shield_removed(scope)
    return removed


def _may_stand(parts: Parts, policy: Policy, scope: Scope) -> bool:
    """Whether a shield may be raised now. Below other groups of a container systemd's deny-all fails anyway."""
    group = scope.target.control_group
    if scope.state not in _WHOLE or not _pace(policy, scope).may_repair(time.monotonic()):
        return False
    return not parts.devices.groups_below(group) - {SHIELD} and parts.devices.populated(group)


def _count(parts: Parts, policy: Policy, scope: Scope) -> None:
    pace, now = _pace(policy, scope), time.monotonic()
    pace.repaired(now)
    if not pace.may_repair(now):
        group = scope.target.control_group
        why = f"{group}: somebody makes or removes the shield again and again: left alone for {pace.pause:g} s"
        parts.recorder.troubles.met(group, GpuguardError(why))


def _pace(policy: Policy, scope: Scope) -> Backoff:
    """Return what keeps gpuguard and somebody who removes shields, or makes them, from a race."""
    if scope.shields is None:
        scope.shields = Backoff(policy.max_repairs, policy.window, policy.pause)
    return scope.shields
