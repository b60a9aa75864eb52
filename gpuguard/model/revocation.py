"""What an identified program takes from a container, or gives it, on purpose and rule by rule. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Optional

from gpuguard.model.entitlement import Entitlement
from gpuguard.model.process import Process, Role
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Write

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


def revoked(write: Write, entitled: Entitlement) -> frozenset[str]:
    """Return the devices that a write has taken from a container on purpose."""
    if not write.denied or write.restored or write.whole_at is not None:
        return frozenset()
    return frozenset(rule.device for rule in on_purpose(write.writer, write.before, write.after, entitled.rules))


def granted(write: Write, entitled: Entitlement, guarded: Callable[[Rule], bool]) -> frozenset[Rule]:
    """Return the guarded rules that an identified program of the host has added: those the container is entitled to.

    A container may write its own list where it is allowed to; it gives itself nothing by that.
    """
    if write.denied or write.writer is None or write.writer.role is not Role.HOST:
        return frozenset()
    if write.before is None or write.after is None or write.before.unrestricted or write.after.unrestricted:
        return frozenset()
    allowed = RuleSet(entitled.rules)
    new = write.before.missing(write.after.rules)
    return frozenset(rule for rule in new if guarded(rule) and not allowed.covers(rule))


def self_given(write: Write, guarded: Callable[[Rule], bool]) -> frozenset[Rule]:
    """Return the guarded rules that a container has added to its own list: it is entitled to none of them."""
    writer, before, after = write.writer, write.before, write.after
    if writer is None or writer.role is not Role.CONTAINER or before is None or after is None:
        return frozenset()
    if (
        not f"{writer.control_group}/".startswith(f"{write.control_group}/")
        or before.unrestricted
        or after.unrestricted
    ):
        return frozenset()
    return frozenset(rule for rule in before.missing(after.rules) if guarded(rule))
