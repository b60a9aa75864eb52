"""What to do about a verdict: a pure function, carried out elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Optional

from gpuguard.model.device_classes import MISC_MAJOR
from gpuguard.model.device_filter import DeviceFilter, Owner, accepted_by_all, of_systemd, without_groups_below
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Declared, Observation
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.unit import DeviceAllow
from gpuguard.model.verdict import Verdict

# From what systemd has and what it shall have: the entries to send, and the rules that have no spelling.
Merge = Callable[[Declared, Iterable[Rule]], tuple[tuple[DeviceAllow, ...], tuple[Rule, ...]]]


@dataclass(frozen=True)
class Futile:
    """A declaration that came to nothing: what systemd `declared` after it, and the rules that it was made for."""

    declared: Declared
    rules: frozenset[Rule]

    def still(self, declared: Declared, rules: Iterable[Rule]) -> bool:
        """Whether one for these rules would be the same again: what else was lost since is worth another."""
        return self.declared == declared and self.rules.issuperset(rules)


@dataclass(frozen=True)
class Plan:
    """Rules to write back at once, entries to declare to systemd, and whether to look again first.

    `lost` are the rules that are lost for certain, whether they can be written back or not.
    `undeclarable` are entitled rules that systemd has no spelling for. On cgroup v2 nothing is declared
    when that would take away what is in force, the rules `narrowed`, or when it is `unclear` what it takes.
    """

    lost: tuple[Rule, ...] = ()
    write: tuple[Rule, ...] = ()
    declare: tuple[DeviceAllow, ...] = ()
    look_again: bool = False
    undeclarable: tuple[Rule, ...] = ()
    narrowed: tuple[Rule, ...] = ()
    unclear: bool = False

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.write or self.declare or self.look_again)

    @property
    def hindrance(self) -> Optional[str]:
        """Why systemd cannot be told all that it should know, None when nothing hinders."""
        if self.unclear:
            return "undeclarable: what a declaration would take away cannot be told, for a program cannot be followed"
        if self.narrowed:
            return "undeclarable: a declaration would take away " + ", ".join(map(str, self.narrowed))
        if self.undeclarable:
            return "undeclarable: systemd has no spelling for " + ", ".join(map(str, self.undeclarable))
        return None


def plan_writes(verdict: Verdict, declared: Optional[Declared], *, second_look: bool) -> tuple[tuple[Rule, ...], bool]:
    """Return the rules that are lost for certain, and whether a second look is wanted before the others.

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
    futile: Optional[Futile] = None,
    second_look: bool = False,
    self_given: Callable[[Rule], bool] = lambda _: False,
) -> Plan:
    """Plan the way to `protected`.

    `self_given`: whether the container may have given itself a rule that is in force (v1); it is not declared along.
    `protect`: declare before the first loss, too. `futile`: the declaration that was last tried in vain: it is not
    tried again while nothing has changed.
    """
    if look.effective is None or look.unrestricted or look.elsewhere is not None:
        return Plan()
    lost, look_again = plan_writes(verdict, look.declared, second_look=second_look or not look.managed)
    found = Plan(lost, lost if look.writable else (), look_again=look_again)
    declared = look.declared
    # On cgroup v2 what is lost comes back by a declaration alone.
    curable = frozenset() if look.writable else frozenset(lost) - verdict.blocked
    if declared is None or look.refusal is not None or not (curable or verdict.at_risk):
        return found
    along = _along(look, declared, guarded, entitled, verdict)
    wanted = curable | verdict.at_risk | frozenset(rule for rule in along if not (look.writable and self_given(rule)))
    entries, unspelt = merge(declared, _sorted(wanted))
    found = replace(found, undeclarable=tuple(rule for rule in unspelt if rule in verdict.at_risk))
    if not look.writable:
        after = RuleSet(declared.memory.rules | wanted - frozenset(unspelt))
        exact = all(entry.exact for entry in look.filters)
        narrowed = _sorted(after.missing(_to_be_kept(look, exact=exact)))
        unclear = not (exact or _of_systemd(look))
        if narrowed or unclear:
            return replace(found, narrowed=narrowed, unclear=unclear)
    # What systemd knows and has not written: any entry of its own makes it write its program anew.
    if curable - frozenset(unspelt) and not entries:
        entries = declared.entries[:1]
    in_vain = futile is not None and futile.still(declared, curable | verdict.at_risk)
    due = entitled.settled and (protect or entitled.struck or bool(verdict.lost)) and not in_vain
    return replace(found, declare=entries if due else ())


def _along(
    look: Observation, declared: Declared, guarded: Callable[[Rule], bool], entitled: Entitlement, verdict: Verdict
) -> frozenset[Rule]:
    """Return what else the runtime gave and systemd does not know.

    Rules of the guarded classes that nobody is entitled to stay as they are, and so do stale ones, whose numbers may
    be those of any driver now, and those of a guarded driver that is not loaded at the moment.
    """
    others = entitled.released.union(rule.device for rule in verdict.stale)
    majors = {(kind, major) for kind, major, _ in entitled.drivers if major != MISC_MAJOR}
    return frozenset(
        rule
        for rule in look.given or ()
        if not (guarded(rule) or rule.device in others or (rule.kind, rule.major) in majors or declared.covers(rule))
    )


def _to_be_kept(look: Observation, *, exact: bool) -> frozenset[Rule]:
    """Return what systemd's next program must let through.

    That is what is in force in the container, and on the scope itself, which its other groups live by. Where a program
    was only asked about some devices, it is also all that systemd's present one lets through.
    """
    scope = accepted_by_all(without_groups_below(look.filters, look.systemds_group)).rules
    return (look.effective or RuleSet()).rules.union(scope, *(() if exact else map(_rules, _of_systemd(look))))


def _of_systemd(look: Observation) -> list[DeviceFilter]:
    """Return systemd's program there: one with more entries lets through what this one does, and more."""
    systemds = of_systemd(look.filters, look.systemds_group)
    return [entry for entry in systemds if entry.owner is Owner.SYSTEMD and entry.exact]


def _rules(entry: DeviceFilter) -> frozenset[Rule]:
    return entry.rules.rules


def _sorted(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: rule.sort_key))
