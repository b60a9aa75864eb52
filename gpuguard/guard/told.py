"""What there is to tell of a scope, and what has been told of it already. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Optional

from gpuguard.guard.scope import Outage, Scope
from gpuguard.model.rule import Rule
from gpuguard.model.state import State


@dataclass
class Told:
    """What was said of a scope, so that it is not said again.

    `observed` are the deeds that observe mode did not do, and of what, since the last moment without need of them.
    """

    found: bool = False
    state: Optional[State] = None
    reason: Optional[str] = None
    excess: frozenset[Rule] = frozenset()
    error: Optional[str] = None
    observed: dict[str, frozenset[Rule]] = field(default_factory=dict)
    outage: Optional[Outage] = None
    declared: tuple[Rule, ...] = ()
    fighting: bool = False
    shielded: bool = False


def who(scope: Scope) -> dict[str, Any]:
    """Return the fields that say which container an entry is about, and how it stands with it."""
    return {
        "scope": scope.target.unit,
        "container": scope.container.id,
        "runtime": scope.record.runtime or scope.container.runtime,
        "name": scope.record.identity.name,
        "namespace": scope.record.identity.namespace,
        "pod": scope.record.identity.pod,
        "state": None if scope.state is None else scope.state.value,
    }


def owed(scope: Scope) -> frozenset[Rule]:
    """Return what the plan gives back, on cgroup v2 by a declaration; nothing where it only protects."""
    return frozenset(scope.plan.lost) - (scope.verdict.blocked if scope.verdict is not None else frozenset())


def meant(scope: Scope) -> Iterable[Rule]:
    """Return what the plan is for."""
    return owed(scope) or (scope.verdict.at_risk if scope.verdict is not None else ())


def in_order(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    """Return rules as they are always told."""
    return tuple(sorted(rules, key=lambda rule: rule.sort_key))
