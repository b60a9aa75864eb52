"""Numbers that belong to another driver by now: how a container with them is judged, and what is left alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Observation
from gpuguard.model.plan import Plan, plan
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict, judge
from tests.model.looks import ENTITLEMENTS, FULL_LOOKS, declaration, entitlement, guarded, look, rules, spell

GPU, UVM = Rule.parse("c 1:0 rw"), Rule.parse("c 1:1 rw")
WHY = "c 1:1 is somebody else's now"


def judged(effective: RuleSet, *, declared: tuple[str, ...] = ("/dev/char/1:0 rw",)) -> tuple[Verdict, Plan]:
    """Judge a container that was given both, the second of which is stale, and plan."""
    seen = look(effective, declaration(*declared))
    return _judged(seen, entitlement(str(GPU), str(UVM)), {UVM: WHY})


def _judged(seen: Observation, known: Entitlement, stale: dict[Rule, str]) -> tuple[Verdict, Plan]:
    verdict = judge(seen, known, guarded, stale)
    return verdict, plan(seen, known, verdict, guarded=guarded, merge=spell, protect=True)


def test_the_state_says_so_and_why() -> None:
    """A stale container is neither protected nor at risk."""
    verdict, made = judged(RuleSet.of(str(GPU)))
    assert (verdict.state, verdict.reason) == (State.STALE, WHY)
    assert not verdict.lost
    assert not made


@pytest.mark.invariant(1)
def test_what_is_in_force_of_it_is_excess() -> None:
    """It opens another driver's device: that is told, and nothing is done about it."""
    verdict, made = judged(RuleSet.of(str(GPU), "c 1:1 rwm"))
    assert verdict.excess == rules("c 1:1 rwm")
    assert not made


def test_excess_also_when_nobody_guards_the_number_any_more() -> None:
    """The new owner of the number need not be of a guarded class."""
    seen = look(RuleSet.of("c 7:1 rw"), declaration())
    verdict = judge(seen, entitlement("c 7:1 rw"), guarded, {Rule.parse("c 7:1 rw"): WHY})
    assert verdict.excess == rules("c 7:1 rw")


def test_what_is_lost_beside_it_is_given_back() -> None:
    """The state is stale, and the device that is still the container's own comes back."""
    verdict, made = judged(RuleSet.of("c 5:0 rwm"), declared=())
    assert verdict.state is State.STALE
    assert made.write == (GPU,)
    assert {entry.path for entry in made.declare} == {"/dev/char/1:0", "/dev/char/5:0"}


def test_a_number_outside_the_classes_is_not_declared_along() -> None:
    """What is stale stays as it is, also where it looks like a device that nobody guards."""
    known, stale = entitlement(str(GPU), "c 7:1 rw"), {Rule.parse("c 7:1 rw"): WHY}
    _, made = _judged(look(RuleSet.of(str(GPU), "c 7:1 rw", "c 7:2 rw"), declaration()), known, stale)
    assert {entry.path for entry in made.declare} == {"/dev/char/1:0", "/dev/char/7:2"}


@pytest.mark.invariant(1)
def test_without_its_driver_nothing_is_given_back() -> None:
    """Under which number it comes back nobody knows: neither lost nor excess until then, and not granted."""
    known, idle = entitlement(str(GPU), str(UVM)), frozenset({UVM})
    for effective in (RuleSet.of(str(GPU)), RuleSet.of(str(GPU), str(UVM))):
        seen = look(effective, declaration("/dev/char/1:0 rw"))
        verdict = judge(seen, known, guarded, {}, idle)
        assert (verdict.state, verdict.excess, verdict.idle) == (State.PROTECTED, frozenset(), idle)
        assert not plan(seen, known, verdict, guarded=guarded, merge=spell, protect=True)


@pytest.mark.invariant(1)
@given(FULL_LOOKS, ENTITLEMENTS, st.frozensets(st.sampled_from(["c 1:0", "c 1:1", "c 1:2"])))
def test_never_granted(seen: Observation, known: Entitlement, devices: frozenset[str]) -> None:
    """Whatever was seen: no stale rule is written, and none is declared that was not."""
    stale = {rule: WHY for rule in known.rules if rule.device in devices}
    verdict, made = _judged(seen, known, stale)
    assert not set(made.write) & set(stale)
    assert not verdict.lost & set(stale)
    assert not verdict.at_risk & set(stale)
    before = {entry.path for entry in seen.declared.entries} if seen.declared is not None else set()
    new = {entry.path for entry in made.declare} - before
    assert not {f"/dev/char/{rule.major}:{rule.minor}" for rule in stale} & new
