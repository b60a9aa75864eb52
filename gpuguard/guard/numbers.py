"""What is the matter with the numbers of a scope's rules: reckoned once for the same rules, drivers and nodes."""

from __future__ import annotations

from gpuguard.guard.parts import Parts
from gpuguard.guard.scope import Scope
from gpuguard.model import stale as model
from gpuguard.model.rule import Rule
from gpuguard.model.stale import Numbers

_NONE = frozenset[Rule]()


def of(parts: Parts, scope: Scope) -> Numbers:
    """Return which rules are another driver's by now, and which have no driver."""
    entitled, guarded = scope.entitled, parts.guarded
    rules, drivers = (entitled.rules, entitled.drivers) if entitled is not None else (_NONE, frozenset())
    facts = (guarded.generation, rules, drivers, scope.record)
    if scope.numbers is None or scope.numbers[0] != facts:
        all_rules, nodes = scope.record.rules | rules, scope.record.nodes
        strange = model.unguarded(all_rules, drivers, guarded.majors, guarded)
        moved = model.stale(all_rules, drivers, guarded.majors, nodes, guarded.nodes)
        idle = model.unloaded(rules, drivers, guarded.majors)
        scope.numbers = (facts, Numbers({**strange, **moved}, idle))
    return scope.numbers[1]
