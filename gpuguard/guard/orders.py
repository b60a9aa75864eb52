"""What the sentinel is told of a scope: what to give back there at once."""

from __future__ import annotations

import time

from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Scope
from gpuguard.model.write import Watched


def give(parts: Parts, policy: Policy, scope: Scope) -> None:
    """Tell the sentinel what the scope is entitled to and what of it systemd is not known to write itself.

    Only on cgroup v1 can it give anything back. Of a list that cannot be read it keeps what it was told.
    """
    if not parts.devices.writable or scope.effective is None:
        return
    if scope.entitled is None or scope.effective.unrestricted:
        parts.sentinel.forget(scope.target.control_group)
        return
    declared = scope.view.declared if scope.view is not None else None
    known = frozenset(rule for rule in scope.entitled.rules if declared is not None and declared.covers(rule))
    scope.paused = not scope.backoff.may_repair(time.monotonic())
    heal = policy.enforce and not scope.paused
    target = scope.target
    parts.sentinel.watch(Watched(target.control_group, target.inode, scope.entitled.rules - known, known, heal))
