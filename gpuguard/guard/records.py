"""What the runtimes' own files say of a scope: when it is read, and what of it is stale by now."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from gpuguard.errors import GpuguardError
from gpuguard.model import stale as numbers
from gpuguard.model.rule import Rule
from gpuguard.model.runtime_record import RuntimeRecord

if TYPE_CHECKING:
    from gpuguard.guard.parts import Parts, Policy
    from gpuguard.guard.scope import Scope

# Seconds.
_AGAIN = 1.0
_PATIENCE = 15.0


class Records(Protocol):
    """Reads what runtimes and kernel say of a container."""

    async def read(self, scope: Scope) -> RuntimeRecord:
        """Return what is known of the container of a scope. Raises GpuguardError."""

    def close(self) -> None:
        """Let go of what reads."""


def due(parts: Parts, scope: Scope) -> bool:
    """Whether the files are to be read: for the first time, again after the start, or with other devices."""
    now = time.monotonic()
    if scope.record.path is None:
        # Some files are written when the control group is there already.
        waiting = scope.consulted - scope.known_since < _PATIENCE
        return waiting and now - scope.consulted >= _AGAIN
    if scope.early:
        return now - scope.consulted >= _AGAIN
    if scope.record.elsewhere is not None and now - scope.consulted >= _PATIENCE:
        return True
    return scope.generation != parts.guarded.generation


async def consult(parts: Parts, policy: Policy, scope: Scope) -> None:
    """Read the files where that is due. What cannot be believed says nothing, and is told if it stays so."""
    if not due(parts, scope):
        return
    scope.generation, scope.consulted = parts.guarded.generation, time.monotonic()
    # Before the container is looked at: what the hook mounted until then is seen.
    starting = parts.start_phase.starting(scope.target.control_group)
    try:
        scope.record = await parts.records.read(scope)
    except GpuguardError as error:
        scope.record = RuntimeRecord(trouble=str(error))
        if scope.consulted - scope.known_since >= _PATIENCE:
            parts.recorder.trouble(scope.target.control_group, error)
    young = time.time() - scope.record.since < policy.settle
    scope.early = scope.record.asked and bool(starting or young)


def stale(parts: Parts, scope: Scope) -> Mapping[Rule, str]:
    """Return the rules whose numbers are not those of the driver that they were given for, and why."""
    rules = scope.record.rules.union(scope.entitled.rules if scope.entitled is not None else ())
    drivers = scope.entitled.drivers if scope.entitled is not None else frozenset()
    return numbers.stale(rules, drivers, parts.guarded.majors, scope.record.nodes, parts.guarded.nodes)
