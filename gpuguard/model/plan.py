"""What to do about a verdict: a pure function, carried out elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Optional

from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Declared, Observation
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.unit import DeviceAllow
from gpuguard.model.verdict import Verdict

# From what systemd has and what it shall have: the entries to send, and the rules that have no spelling.
Merge = Callable[[Declared, Iterable[Rule]], tuple[tuple[DeviceAllow, ...], tuple[Rule, ...]]]


@dataclass(frozen=True)
class Plan:
    """Rules to write back at once, entries to declare to systemd, and whether to look again first.

    `undeclarable` are entitled rules that systemd has no spelling for.
    """

    write: tuple[Rule, ...] = ()
    declare: tuple[DeviceAllow, ...] = ()
    look_again: bool = False
    undeclarable: tuple[Rule, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.write or self.declare or self.look_again)


def plan_writes(verdict: Verdict, declared: Optional[Declared], *, second_look: bool) -> tuple[tuple[Rule, ...], bool]:
    """Return the rules to write back now, and whether a second look is wanted before the others.

    systemd is caught between its deny-all and its allows in half of all reloads: what it is known
    to declare, or may declare for all that is known, it is about to write itself.
    """
    late = frozenset(rule for rule in verdict.lost if declared is None or declared.covers(rule))
    if second_look:
        return _sorted(verdict.lost), False
    return _sorted(verdict.lost - late), bool(late)


def plan(  # noqa: PLR0913 - each is a fact of its own
    look: Observation,
    entitled: Entitlement,
    verdict: Verdict,
    *,
    guarded: Callable[[Rule], bool],
    merge: Merge,
    protect: bool,
    futile: Optional[Declared] = None,
    second_look: bool = False,
) -> Plan:
    """Plan the way to `protected`.

    `protect`: declare before the first loss, too. `futile`: what systemd declared when the same
    declaration was last tried in vain: it is not tried again while nothing has changed.
    """
    if look.effective is None or look.effective.unrestricted:
        return Plan()
    write, look_again = plan_writes(verdict, look.declared, second_look=second_look)
    declared = look.declared
    if declared is None or look.refusal is not None or not verdict.at_risk:
        return Plan(write, look_again=look_again)
    entries, undeclarable = merge(declared, _wanted(look.effective, declared, verdict, guarded))
    due = entitled.settled and (protect or entitled.struck or bool(verdict.lost)) and declared != futile
    return Plan(
        write,
        declare=entries if due else (),
        look_again=look_again,
        undeclarable=tuple(rule for rule in undeclarable if rule in verdict.at_risk),
    )


def _wanted(
    effective: RuleSet, declared: Declared, verdict: Verdict, guarded: Callable[[Rule], bool]
) -> tuple[Rule, ...]:
    """Return what is at risk, and along with it what else is in force that systemd does not know.

    Rules of the guarded classes that nobody is entitled to stay as they are.
    """
    along = frozenset(rule for rule in effective if not guarded(rule) and not declared.covers(rule))
    return _sorted(verdict.at_risk | along)


def _sorted(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: rule.sort_key))
