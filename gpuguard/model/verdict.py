"""The judgement of one look: a pure function of what was seen and what the scope is entitled to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Observation
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State

Rules = frozenset[Rule]
_NONE: Rules = frozenset()


@dataclass(frozen=True)
class Verdict:
    """How it stands with one scope: the state, why, and the differences of the three lists.

    `lost` is entitled but not effective, `at_risk` is entitled but not declared (empty when that
    cannot be told), `excess` is effective and guarded but neither entitled nor released.
    """

    state: State
    reason: Optional[str] = None
    lost: Rules = _NONE
    at_risk: Rules = _NONE
    excess: Rules = _NONE


_UNRESTRICTED = Verdict(State.UNRESTRICTED, "no device filter")


def judge_unknown(look: Observation) -> Optional[Verdict]:
    """Judge a scope of which no entitlement is known; None when its list shows nothing to guard."""
    if look.effective is None:
        return _opaque(look)
    return _UNRESTRICTED if look.effective.unrestricted else None


def judge(look: Observation, entitled: Entitlement, guarded: Callable[[Rule], bool]) -> Verdict:
    """Compare the three lists. Where several states hold, State's order decides."""
    if look.effective is None:
        return _opaque(look)
    if look.effective.unrestricted:
        return _UNRESTRICTED
    lost = look.effective.missing(entitled.rules)
    at_risk = _undeclared(look, entitled)
    allowed = RuleSet(entitled.rules)
    excess = frozenset(
        rule
        for rule in look.effective
        if guarded(rule) and not allowed.covers(rule) and rule.device not in entitled.released
    )
    return Verdict(*_state(look, entitled, lost, at_risk), lost=lost, at_risk=at_risk, excess=excess)


def _opaque(look: Observation) -> Verdict:
    return Verdict(State.OPAQUE, look.trouble or "the kernel's list cannot be read")


def _undeclared(look: Observation, entitled: Entitlement) -> Rules:
    if look.declared is None:
        return _NONE
    declared = look.declared
    return frozenset(rule for rule in entitled.rules if not declared.covers(rule))


def _state(look: Observation, entitled: Entitlement, lost: Rules, at_risk: Rules) -> tuple[State, Optional[str]]:
    if not entitled.settled:
        return State.SETTLING, "too early to judge"
    if lost:
        return (State.LOST if lost == entitled.rules else State.PARTIAL), None
    if look.declared is None:
        return State.AT_RISK, look.trouble or "systemd cannot be asked"
    if at_risk:
        return State.AT_RISK, look.refusal or _why_undeclared(look, at_risk)
    return State.PROTECTED, None


def _why_undeclared(look: Observation, at_risk: Rules) -> str:
    if look.declared is not None and all(look.declared.memory.covers(rule) for rule in at_risk):
        return "the unit's files on disk do not say what systemd has in memory: the next reload takes it away"
    return "systemd does not know these devices: its next rewrite takes them away"
