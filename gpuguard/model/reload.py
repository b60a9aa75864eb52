"""What a reload of systemd would do to one container. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

from gpuguard.model.device_filter import DeviceFilter, Owner, denying, of_systemd
from gpuguard.model.explanation import Comparison, Explanation
from gpuguard.model.observation import Declared
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State


def in_force_v1(
    rule: Rule, effective: Optional[RuleSet], declared: Optional[Declared], *, shield: bool, denied_above: bool
) -> Optional[bool]:
    """Tell whether a rule is in force after a reload on cgroup v1, None when that cannot be told.

    Under a shield systemd's deny-all fails and its allows arrive; what an ancestor denies, nobody can allow.
    """
    if denied_above:
        return False
    if shield and (effective is None or effective.covers(rule)):
        return None if effective is None else True
    return _written(rule, declared)


def in_force_v2(
    rule: Rule,
    filters: Optional[Iterable[DeviceFilter]],
    declared: Optional[Declared],
    control_group: str,
    *,
    asked: bool = False,
) -> Optional[bool]:
    """Tell whether a rule is in force after a reload on cgroup v2, None when that cannot be told.

    systemd replaces its own program alone. One that may be systemd's or somebody else's may stay or go. `asked`: also
    a program that no list of rules describes was asked about this rule.
    """
    written = _written(rule, declared)
    if filters is None:
        return None if written else written
    filters = tuple(filters)
    deniers, systemds = denying(filters, rule), of_systemd(filters, control_group)
    staying = [entry for entry in deniers if entry not in systemds]
    if any(entry.exact or asked for entry in staying):
        return False
    if not written:
        return written
    return None if staying or any(entry.owner is Owner.UNKNOWN for entry in deniers) else True


def _written(rule: Rule, declared: Optional[Declared]) -> Optional[bool]:
    if declared is None:
        return None
    return declared.after_reload.covers(rule)


def reload_sentence(explanation: Explanation) -> str:
    """Say what a reload would do now."""
    if explanation.container.state is State.UNRESTRICTED:
        return "Nothing: there is no device filter."
    if explanation.elsewhere is not None:
        return f"Nothing: the rules of {explanation.elsewhere} count for it, and no reload changes those."
    return " ".join(_sentences(explanation)) or "Nothing is taken away."


def _sentences(explanation: Explanation) -> Iterator[str]:
    if not explanation.comparisons:
        yield "Cannot be told."
        return
    owed = [entry for entry in explanation.comparisons if entry.entitled]
    taken = [entry for entry in owed if entry.effective and entry.after_reload is False]
    others = [
        entry
        for entry in explanation.comparisons
        if not entry.entitled and entry.effective and entry.after_reload is False
    ]
    if taken:
        yield f"It takes away {rules(taken)}{_given_back(explanation)}."
    if others:
        yield f"It takes away {rules(others)}, which gpuguard does not give back."
    back = [entry for entry in owed if entry.effective is False and entry.after_reload]
    if back:
        yield f"It gives back {rules(back)}, which systemd knows."
    returned = returning(explanation)
    if returned:
        yield f"It gives back {rules(returned)}, which somebody took away on purpose: systemd knows it still."
    still = [entry for entry in owed if entry.effective is False and entry.after_reload is False]
    if still:
        yield f"It leaves {rules(still)} denied."
    unclear = [entry for entry in owed if entry.after_reload is None]
    if unclear:
        yield f"For {rules(unclear)} it cannot be told."


def returning(explanation: Explanation) -> list[Comparison]:
    """Return what was released or revoked, and comes back at a reload."""
    return [
        entry for entry in explanation.comparisons if entry.released and entry.effective is False and entry.after_reload
    ]


def _given_back(explanation: Explanation) -> str:
    if not explanation.guards:
        return ", and no daemon is at work to give that back"
    if explanation.node.cgroup == "v1":
        return "; the daemon writes that back at once"
    return "; the daemon then has systemd give back what systemd has words for"


def rules(comparisons: Iterable[Comparison]) -> str:
    """Return the rules, for a sentence."""
    return ", ".join(str(entry.rule) for entry in comparisons)
