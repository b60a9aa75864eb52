"""What a write takes from a container, or gives it, on purpose: what is to be learnt of it. Pure."""

from __future__ import annotations

from collections.abc import Callable

from gpuguard.model.entitlement import Entitlement
from gpuguard.model.pathname import within
from gpuguard.model.process import Role
from gpuguard.model.purpose import on_purpose
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Write


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
    if not within(writer.control_group, write.control_group) or before.unrestricted or after.unrestricted:
        return frozenset()
    return frozenset(rule for rule in before.missing(after.rules) if guarded(rule))
