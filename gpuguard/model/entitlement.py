"""What a container's runtime gave it, learnt from what was seen while it was healthy."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from typing import Optional

from gpuguard.model.device_filter import Owner, denying, own
from gpuguard.model.grant import Source
from gpuguard.model.majors import Majors
from gpuguard.model.nested import Groups, without
from gpuguard.model.observation import Observation
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet, largest_rules
from gpuguard.model.runtime_record import RuntimeRecord
from gpuguard.model.stale import drivers_of

_NO_RECORD = RuntimeRecord()

# No runtime waits longer for its hooks. What never begins a program of its own (a WebAssembly module that runs in the
# runtime's process) is not waited for in vain. Seconds.
_LONGEST_START = 600.0


@dataclass(frozen=True)
class Entitlement:
    """The device rules that one scope is entitled to; the scope is its cgroup's inode, not its name.

    While not `settled` it is provisional: the runtime or its hooks may still be writing.
    `struck` is whether a loss was seen. `quiet_since` is when a foreign write was last seen, in
    seconds of CLOCK_MONOTONIC; `first_seen` is in seconds since the epoch.
    `by_spec` and `by_request` are those of the rules that nobody has seen in force of themselves: the runtime's
    specification says them, or the request in it. `drivers` are the drivers that had the rules' majors when they
    were learnt: (type, major, name). `nested` are the control groups that the container has made below its own.
    """

    unit: str
    control_group: str
    inode: int
    invocation: str
    rules: frozenset[Rule]
    released: frozenset[str]
    settled: bool
    struck: bool
    quiet_since: float
    first_seen: float
    by_spec: frozenset[Rule] = frozenset()
    by_request: frozenset[Rule] = frozenset()
    drivers: frozenset[tuple[str, int, str]] = frozenset()
    nested: Groups = ()

    def source(self, rule: Rule) -> Source:
        """How it is known that the container is entitled to one of the rules."""
        if rule in self.by_spec:
            return Source.SPEC
        return Source.REQUEST if rule in self.by_request else Source.LEDGER

    def belongs_to(self, look: Observation) -> bool:
        """Whether this is the entitlement of the scope that was looked at, and not of a namesake."""
        same_run = not self.invocation or not look.invocation or self.invocation == look.invocation
        return self.inode == look.inode and self.control_group == look.control_group and same_run


def learn(  # noqa: PLR0913 - each is a fact of its own
    known: Optional[Entitlement],
    look: Observation,
    guarded: Callable[[Rule], bool],
    *,
    settle: float,
    reloading: bool,
    wall_clock: float,
    record: RuntimeRecord = _NO_RECORD,
    stale: frozenset[Rule] = frozenset(),
) -> Optional[Entitlement]:
    """Return the entitlement as it is after one look; None when the scope has none that is known.

    Nothing is learnt from what cannot be read or from a cgroup without a filter. Rules that are
    seen while unsettled are added; a settled entitlement does not grow by what is seen. What the runtime's own files
    grant is added when the start is over: until then hooks are at work, and are not overtaken. It settles when nobody
    but systemd has written for `settle` seconds, outside a reload, with all its rules in force that are not `stale`
    and that the runtime's files do not grant, and the container's own program has begun: until then hooks may write.
    On cgroup v2, where only a declaration gives back what is lost, it settles without all its rules in force: there
    the runtime's own program tells what the runtime has given, whatever systemd's denies.
    """
    if known is not None and not known.belongs_to(look):
        known = None
    if look.effective is None or look.unrestricted:
        return known
    before = known
    if known is None or not known.settled:
        known = _seen(known, look, guarded, wall_clock)
    told = not look.starting and record.path is not None and wall_clock - record.since >= settle
    if told:
        known = _recorded(known, look, guarded, record, wall_clock)
    if known is None or known.settled or known != before:
        return known
    quiet = look.at - max(known.quiet_since, look.started or 0.0)
    missing = look.effective.missing(known.rules - stale)
    # What the runtime's files grant need not be seen in force: nobody may be there to give it back (observe mode).
    whole = not (RuleSet(frozenset(grant.rule for grant in record.grants)).missing(missing) if told else missing)
    starting = look.starting and quiet < _LONGEST_START
    if (whole or not look.writable) and not reloading and not starting and quiet >= settle:
        return replace(known, settled=True, invocation=known.invocation or look.invocation)
    return known


def _seen(
    known: Optional[Entitlement], look: Observation, guarded: Callable[[Rule], bool], wall_clock: float
) -> Optional[Entitlement]:
    """Add what is in force; take away what the runtime's own program denies."""
    seen = frozenset(rule for rule in look.given or () if guarded(rule))
    if known is None:
        return _first(look, seen, wall_clock) if seen else None
    refused = _refused(known.rules, look)
    if refused:
        rules = known.rules - refused
        return replace(known, rules=rules, quiet_since=look.at) if rules or known.released else None
    new = _others(RuleSet(known.rules).missing(seen), known.released)
    return replace(known, rules=largest_rules(known.rules | new), quiet_since=look.at) if new else known


def _recorded(
    known: Optional[Entitlement],
    look: Observation,
    guarded: Callable[[Rule], bool],
    record: RuntimeRecord,
    wall_clock: float,
) -> Optional[Entitlement]:
    """Add what the runtime's own files grant, but for what its own program denies: that it has not given after all."""
    have = RuleSet(known.rules if known is not None else frozenset())
    released = known.released if known is not None else frozenset()
    new = {grant.rule: grant.source for grant in record.grants if guarded(grant.rule) and not have.covers(grant.rule)}
    rules = _others(frozenset(new), released)
    rules -= _refused(rules, look)
    if not rules:
        return known
    known = known or _first(look, frozenset(), wall_clock)
    return replace(
        known,
        rules=largest_rules(known.rules | rules),
        by_spec=known.by_spec.union(rule for rule in rules if new[rule] is Source.SPEC),
        by_request=known.by_request.union(rule for rule in rules if new[rule] is Source.REQUEST),
    )


def _first(look: Observation, rules: frozenset[Rule], wall_clock: float) -> Entitlement:
    return Entitlement(
        unit=look.unit,
        control_group=look.control_group,
        inode=look.inode,
        invocation=look.invocation,
        rules=rules,
        released=frozenset(),
        settled=False,
        struck=False,
        quiet_since=look.at,
        first_seen=wall_clock,
    )


def release(known: Entitlement, devices: frozenset[str]) -> Entitlement:
    """Forget the rules of `devices` ("c 195:0"), on purpose and for good."""
    rules = frozenset(rule for rule in known.rules if rule.device not in devices)
    return replace(known, rules=rules, released=known.released | devices, nested=without(known.nested, devices))


def note_drivers(known: Entitlement, majors: Majors, stale: Container[Rule] = ()) -> Entitlement:
    """Note which drivers have the majors of the rules, but for `stale` ones, where that is not noted yet."""
    noted = {(kind, major) for kind, major, _ in known.drivers}
    rules = [rule for rule in known.rules if (rule.kind, rule.major) not in noted and rule not in stale]
    new = drivers_of(rules, majors)
    return replace(known, drivers=known.drivers | new) if new else known


def unlearn(known: Entitlement, self_given: RuleSet, before: frozenset[Rule]) -> Entitlement:
    """Forget what a container has given itself, where a look has learnt it already; `before` is what it had."""
    rules = frozenset(rule for rule in known.rules if not self_given.covers(rule))
    return replace(known, rules=largest_rules(rules | _others(before, known.released)))


def grant(known: Entitlement, rules: frozenset[Rule]) -> Entitlement:
    """Add rules that were given on purpose, released devices among them."""
    given = frozenset(rule.device for rule in rules)
    return replace(known, rules=largest_rules(known.rules | rules), released=known.released - given)


def _others(rules: frozenset[Rule], released: frozenset[str]) -> frozenset[Rule]:
    """Return the rules that open none of the released devices, as a wildcard would."""
    devices = [Rule.parse(f"{device} rwm") for device in released]
    return frozenset(rule for rule in rules if not any(map(rule.meet, devices)))


def _refused(rules: frozenset[Rule], look: Observation) -> frozenset[Rule]:
    """Return the rules that the runtime's own program does not accept."""
    programs = [entry for entry in own(look.filters, look.control_group) if entry.owner is Owner.RUNTIME]
    return frozenset(rule for rule in rules if denying(programs, rule))
