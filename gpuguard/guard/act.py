"""What a look at one scope may lead to: ask systemd, write back, declare. Each is told to the recorder."""

from __future__ import annotations

import time
from typing import Optional

from gpuguard.guard import shield
from gpuguard.guard.mend import Deed
from gpuguard.guard.observe import unmanaged
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Scope
from gpuguard.model.plan import Futile
from gpuguard.model.process import Role
from gpuguard.model.rule import Rule

# Seconds in which files that came late are waited for.
_FILES_COME = 60.0


async def ask_systemd(parts: Parts, scope: Scope) -> None:
    """Ask systemd what it would write."""
    target = scope.target
    if target.unit_group is None or not target.managed(writable=parts.devices.writable):
        scope.view = unmanaged(target)
    else:
        scope.view = await parts.observer.view(target.unit, target.unit_group)
    scope.viewed_at = time.monotonic()


async def write(parts: Parts, policy: Policy, scope: Scope) -> bool:
    """Write back what is lost; return whether all of it is in force. If not, the next look tries again."""
    if not _may_act(parts, policy, scope):
        return False
    scope.deeds += [f"write {rule}" for rule in scope.plan.write]
    deed = await parts.mender.write(scope.target, scope.plan.write)
    if not _after_a_rewrite(scope):
        scope.backoff.repaired(time.monotonic())
    _done(parts, scope, deed)
    return deed.error is None


async def declare(parts: Parts, policy: Policy, scope: Scope) -> bool:
    """Declare, and ask systemd what it has now: the same is not tried again in vain while that does not change."""
    if not scope.plan.declare or _files_come(scope) or not _may_act(parts, policy, scope):
        return False
    # What follows a write is a part of the same repair.
    if not (_first_after_a_reload(parts, scope) or scope.deeds):
        scope.backoff.repaired(time.monotonic())
    scope.deeds += [f"declare {entry}" for entry in scope.plan.declare]
    scope.outstanding = True
    keep = shield.stands(parts, policy, scope)
    deed = await parts.mender.declare(scope.target, scope.plan.declare, _curable(scope), keep=keep)
    scope.outstanding = not deed.answered
    parts.causes.declared(scope.target.unit, time.monotonic())
    _done(parts, scope, deed)
    await ask_systemd(parts, scope)
    scope.futile = _futile(scope) if deed.answered and (deed.refused or not _forgotten(scope)) else None
    return True


def _futile(scope: Scope) -> Optional[Futile]:
    if scope.view is None or scope.view.declared is None or scope.verdict is None:
        return None
    return Futile(scope.view.declared, scope.verdict.at_risk | _curable(scope))


def _files_come(scope: Scope) -> bool:
    """Whether files that came late tell soon what may be declared along with what is at risk; a loss waits for none."""
    late = scope.record.late and scope.record.trouble is not None
    return late and not scope.plan.lost and time.monotonic() - scope.known_since < _FILES_COME


def _curable(scope: Scope) -> frozenset[Rule]:
    """Return what is lost and must be in force after a declaration."""
    if scope.verdict is None:
        return frozenset()
    return scope.verdict.lost - scope.verdict.blocked - frozenset(scope.plan.undeclarable)


def _may_act(parts: Parts, policy: Policy, scope: Scope) -> bool:
    if not policy.enforce:
        parts.recorder.observed(scope)
        return False
    if not scope.backoff.may_repair(time.monotonic()):
        parts.recorder.refused(scope)
        return False
    return True


def _done(parts: Parts, scope: Scope, deed: Deed) -> None:
    scope.error = deed.error
    parts.recorder.done(scope, deed)


def _forgotten(scope: Scope) -> bool:
    """Whether systemd has forgotten what it was just told: somebody else had it do so, and it is worth another try."""
    if scope.view is None or scope.view.declared is None or scope.verdict is None:
        return False
    # What it was believed to know, by an answer of before, and had not written is what it may have been made to forget.
    told = (scope.verdict.at_risk | _curable(scope)) - frozenset(scope.plan.undeclarable)
    return bool(scope.view.declared.memory.missing(told))


def _first_after_a_reload(parts: Parts, scope: Scope) -> bool:
    """Whether systemd has read all files anew since the last declaration: what it does not know then is no fight."""
    ended = parts.causes.last_reload
    if ended == scope.reloaded:
        return False
    scope.reloaded = ended
    return True


def _after_a_rewrite(scope: Scope) -> bool:
    """Whether this is the first write after one of systemd's own rewrites: however many there are, that is no fight."""
    cause = scope.outage.cause if scope.outage is not None else None
    if cause is None or cause.since is None or cause.writer is None or cause.writer.role is not Role.SYSTEMD:
        return False
    if cause.since == scope.made_good:
        return False
    scope.made_good = cause.since
    return True
