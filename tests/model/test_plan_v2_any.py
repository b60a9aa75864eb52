"""The plan on cgroup v2 for programs, declarations and entitlements of any kind: carried out as systemd does it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.device_filter import DeviceFilter, Owner, accepted_by_all, without_groups_below
from gpuguard.model.deviceallow import declared_rules
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Observation
from gpuguard.model.plan import Plan, plan
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.verdict import judge
from tests.model.looks import DECLARED, FACTS, FILTERED, GROUP, GUARDED_RULES, entitlement, guarded, spell
from tests.model.programs import SLICE, look_at
from tests.model.strategies import CLOSE_RULES
from tests.model.test_deviceallow import systemd_merge

# One program of systemd at most on a group, and lists that have something in common.
COMMON = st.frozensets(CLOSE_RULES, min_size=1, max_size=3)
OTHERS = st.lists(
    st.tuples(st.sampled_from([GROUP, GROUP, f"{GROUP}/container", SLICE]), st.sampled_from(Owner), FILTERED),
    max_size=3,
)


class Case(NamedTuple):
    """A look, and who is entitled to what."""

    look: Observation
    entitled: Entitlement
    plan: Plan


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a case; in many of them nothing is declared."""
    common = draw(COMMON)
    filters = [
        DeviceFilter(group, number, owner, RuleSet(rules.rules | common))
        for number, (group, owner, rules) in enumerate(draw(OTHERS), 20)
        if (group, owner) != (GROUP, Owner.SYSTEMD)
    ]
    if draw(st.booleans()):
        filters.append(DeviceFilter(GROUP, 12, Owner.SYSTEMD, RuleSet(draw(FILTERED).rules | common)))
    filters.sort(key=lambda entry: -len(entry.control_group))
    seen = look_at(*filters, declared=draw(DECLARED))
    some = [rule for rule in (seen.given or ()) if guarded(rule)]
    known = draw(GUARDED_RULES) | frozenset(draw(st.lists(st.sampled_from(some), max_size=3)) if some else ())
    entitled = entitlement(*map(str, known))
    found = plan(
        seen,
        entitled,
        judge(seen, entitled, guarded),
        guarded=guarded,
        merge=spell,
        protect=True,
        second_look=draw(st.booleans()),
    )
    return Case(seen, entitled, found)


def carried_out(case: Case) -> tuple[DeviceFilter, ...]:
    """Return the programs after systemd has done what the plan says; one that only may be systemd's stays."""
    declared = case.look.declared
    if declared is None or not case.plan.declare:
        return case.look.filters
    entries = systemd_merge(declared.entries, case.plan.declare)
    written = DeviceFilter(GROUP, 99, Owner.SYSTEMD, declared_rules(declared.policy, entries, FACTS))
    gone = (GROUP, Owner.SYSTEMD)
    return (*(entry for entry in case.look.filters if (entry.control_group, entry.owner) != gone), written)


def parts(rules: Iterable[Rule]) -> frozenset[Rule]:
    """Return rules of one access each."""
    bits = (Access.MKNOD, Access.READ, Access.WRITE)
    return frozenset(
        Rule(rule.kind, rule.major, rule.minor, bit) for rule in rules for bit in bits if rule.access & bit
    )


@pytest.mark.invariant(2)
@given(cases())
def test_nothing_is_taken_away(case: Case) -> None:
    """Neither in the container nor on the scope is anything denied that was let through before."""
    after = carried_out(case)
    for before, now in (
        (case.look.filters, after),
        (without_groups_below(case.look.filters, GROUP), without_groups_below(after, GROUP)),
    ):
        if not accepted_by_all(before).unrestricted:
            assert not accepted_by_all(now).missing(accepted_by_all(before))


@pytest.mark.invariant(1)
@given(cases())
def test_nothing_is_given_that_is_nobodys(case: Case) -> None:
    """What is let through now was before, or is entitled, or systemd had it declared, or the runtime gave it.

    Of the guarded classes that the runtime gave it is not enough.
    """
    look, now = case.look, accepted_by_all(carried_out(case))
    assert look.effective is not None
    assert look.declared is not None
    mine = look.effective.rules | case.entitled.rules | look.declared.memory.rules
    if look.effective.unrestricted or look.declared.memory.unrestricted:
        assert not case.plan.declare
        return
    allowed = RuleSet(parts(mine | frozenset(rule for rule in look.given or () if not guarded(rule))))
    assert not allowed.missing(parts(now))


@pytest.mark.invariant(1)
@given(cases())
def test_nobody_but_the_runtime_on_the_scope_gives(case: Case) -> None:
    """Without a program of the runtime's on the scope itself the sent entries are in force already, or entitled."""
    look = case.look
    assert look.effective is not None
    assert look.declared is not None
    if any(entry.owner is Owner.RUNTIME and entry.control_group == GROUP for entry in look.filters):
        return
    if look.effective.unrestricted or not case.plan.declare:
        return
    sent = declared_rules(look.declared.policy, case.plan.declare, FACTS)
    allowed = look.effective.rules | case.entitled.rules | look.declared.memory.rules
    assert not RuleSet(parts(allowed)).missing(parts(sent))
