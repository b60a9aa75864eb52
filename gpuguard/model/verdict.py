"""The judgement of one look: a pure function of what was seen and what the scope is entitled to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Optional

from gpuguard.model.device_filter import DeviceFilter, denying, of_systemd
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Observation
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State

Rules = frozenset[Rule]
_NONE: Rules = frozenset()
_NOTHING: Mapping[Rule, str] = MappingProxyType({})
IN_ANOTHER_GROUP = "its first process is in"
"""How the reason begins for a container that the list of its own control group says nothing about."""


@dataclass(frozen=True)
class Verdict:
    """How it stands with one scope: the state, why, and the differences of the three lists.

    `lost` is entitled but not effective, `at_risk` is entitled but not declared (empty when that
    cannot be told), `excess` is effective and guarded but neither entitled nor released. `blocked` is
    the part of `lost` that no declaration brings back: a program that is not systemd's denies it. `stale` is what
    it was entitled to while the numbers were its driver's: neither lost nor at risk, and excess where it is in force.
    `idle` is what has no driver now: it may come back under another number, and is not given back before it does.
    """

    state: State
    reason: Optional[str] = None
    lost: Rules = _NONE
    at_risk: Rules = _NONE
    excess: Rules = _NONE
    blocked: Rules = _NONE
    stale: Rules = _NONE
    idle: Rules = _NONE


_UNRESTRICTED = Verdict(State.UNRESTRICTED, "no device filter")


def judge_unknown(look: Observation, guarded: Callable[[Rule], bool], doubts: Sequence[str] = ()) -> Optional[Verdict]:
    """Judge a scope of which no entitlement is known; None when it has nothing to guard.

    What it may use all the same is not believed to be given: that is excess. `doubts` say what it may have been given,
    and why that cannot be told.
    """
    if look.effective is None:
        return _opaque(look)
    if look.unrestricted:
        return _UNRESTRICTED
    excess = frozenset(filter(guarded, look.effective))
    if doubts:
        return Verdict(State.OPAQUE, "; ".join(doubts), excess=excess)
    return Verdict(State.PROTECTED, "nothing was given to it", excess=excess) if excess else None


def judge(
    look: Observation,
    entitled: Entitlement,
    guarded: Callable[[Rule], bool],
    stale: Mapping[Rule, str] = _NOTHING,
    idle: Rules = _NONE,
) -> Verdict:
    """Compare the three lists. Where several states hold, State's order decides.

    `stale` says of which rules the numbers belong to somebody else now, and why; `idle` which have no driver now.
    Of a container in another group nothing is lost or at risk: its own list says nothing of it, and no reload changes
    the other one's.
    """
    if look.effective is None:
        return _opaque(look)
    if look.unrestricted:
        return _UNRESTRICTED
    stale = {rule: why for rule, why in stale.items() if rule in entitled.rules}
    rules = entitled.rules.difference(stale, idle)
    if look.elsewhere is not None:
        lost, at_risk = _NONE, _NONE
    else:
        lost, at_risk = look.effective.missing(rules), _undeclared(look, rules)
    blocked = frozenset(rule for rule in lost if _blocking(look, rule))
    allowed = RuleSet(rules | idle)
    old = {rule.device for rule in stale}
    excess = frozenset(
        rule
        for rule in look.effective
        if (guarded(rule) or rule.device in old) and not allowed.covers(rule) and rule.device not in entitled.released
    )
    state, reason = _state(look, entitled, lost, at_risk, stale)
    if look.elsewhere is not None:
        state = State.OPAQUE
        reason = f"{IN_ANOTHER_GROUP} {look.elsewhere}, whose device rules count for it, not its own"
    return Verdict(state, reason, lost, at_risk, excess, blocked, stale=frozenset(stale), idle=idle & entitled.rules)


def _opaque(look: Observation) -> Verdict:
    return Verdict(State.OPAQUE, look.trouble or "the kernel's list cannot be read")


def _undeclared(look: Observation, rules: Rules) -> Rules:
    if look.declared is None:
        return _NONE
    declared = look.declared
    return frozenset(rule for rule in rules if not declared.covers(rule))


def _state(
    look: Observation, entitled: Entitlement, lost: Rules, at_risk: Rules, stale: Mapping[Rule, str]
) -> tuple[State, Optional[str]]:
    if not entitled.settled:
        return State.SETTLING, "too early to judge"
    if stale:
        return State.STALE, "; ".join(stale[rule] for rule in sorted(stale, key=lambda rule: rule.sort_key))
    if lost:
        return (State.LOST if lost == entitled.rules else State.PARTIAL), _why_lost(look, lost)
    if look.declared is None and look.managed:
        return State.AT_RISK, look.trouble or "systemd cannot be asked"
    if at_risk:
        return State.AT_RISK, look.refusal or _why_undeclared(look, at_risk)
    return State.PROTECTED, None if look.managed else look.refusal


def _blocking(look: Observation, rule: Rule) -> list[DeviceFilter]:
    """Return the programs that deny a rule and are not replaced when systemd writes the scope's program."""
    systemds = of_systemd(look.filters, look.systemds_group)
    return [entry for entry in denying(look.filters, rule) if entry not in systemds]


def _why_lost(look: Observation, lost: Rules) -> Optional[str]:
    """Say what keeps the loss from being mended, else who denies."""
    blocking = any(_blocking(look, rule) for rule in lost)
    if not (look.writable or look.managed):
        return f"only its runtime can give it back: {_who_denies(look, lost, blocking=False) or look.refusal}"
    if not (look.writable or blocking):  # only a declaration gives it back
        hindrance = look.refusal or (look.trouble if look.declared is None else None)
        if hindrance is not None:
            return hindrance
    return _who_denies(look, lost, blocking=blocking)


def _who_denies(look: Observation, lost: Rules, *, blocking: bool) -> Optional[str]:
    """Name the programs that deny what is lost; `blocking`: of those only the ones that no declaration cures."""
    denied: dict[DeviceFilter, list[str]] = {}
    for rule in sorted(lost, key=lambda rule: rule.sort_key):
        for entry in _blocking(look, rule) if blocking else denying(look.filters, rule):
            denied.setdefault(entry, []).append(str(rule))
    text = "; ".join(f"{entry} denies {', '.join(rules)}" for entry, rules in denied.items())
    return f"blocked: {text}" if blocking else text or None


def _why_undeclared(look: Observation, at_risk: Rules) -> str:
    if look.declared is not None and all(look.declared.memory.covers(rule) for rule in at_risk):
        return "the unit's files on disk do not say what systemd has in memory: the next reload takes it away"
    return "systemd does not know these devices: its next rewrite takes them away"
