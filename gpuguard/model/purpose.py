"""What an identified program takes from a container on purpose, rule by rule. Pure, and light: the sentinel asks."""

from __future__ import annotations

from collections.abc import Collection
from typing import Optional

from gpuguard.model.process import Process, Role
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet

_DELIBERATE = frozenset({Role.HOST, Role.CONTAINER})


def on_purpose(
    writer: Optional[Process], before: Optional[RuleSet], after: Optional[RuleSet], entitled: Collection[Rule]
) -> frozenset[Rule]:
    """Return the entitled rules that a writer has taken away single-handed; none: what is missing is a loss.

    systemd and the runtimes rewrite whole lists, and what that takes away nobody meant. Another program that can be
    identified means it when it takes nothing but what the container is entitled to, and leaves the rest of the list
    alone. A list that is emptied altogether ("a" in devices.deny) is no single rule, also where somebody has begun to
    fill it again before it was looked at.
    """
    if writer is None or writer.role not in _DELIBERATE or before is None or after is None:
        return frozenset()
    if before.unrestricted or after.unrestricted or not after.rules or before.missing(after.rules):
        return frozenset()
    taken = frozenset(rule for rule in entitled if before.covers(rule) and not after.covers(rule))
    vanished = after.missing(before.rules)
    meant = RuleSet(taken)
    return taken if taken and all(_part_of(rule, meant, taken) for rule in vanished) else frozenset()


def _part_of(rule: Rule, meant: RuleSet, taken: frozenset[Rule]) -> bool:
    """Whether a rule that vanished is one of the devices that were taken, with whatever access it had there."""
    return meant.covers(rule) or any(rule.device == other.device for other in taken)
