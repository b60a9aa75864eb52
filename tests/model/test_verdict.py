"""The judgement of one look: states and their order, the three differences, and that unknown is not false."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given

from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Observation
from gpuguard.model.plan import plan
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State
from gpuguard.model.unit import DevicePolicy
from gpuguard.model.verdict import Verdict, judge, judge_unknown
from tests.model.looks import ENTITLEMENTS, FULL_LOOKS, declaration, entitlement, guarded, look, rules, spell

GPU0, GPU1 = "/dev/char/1:0 rw", "/dev/char/1:1 rw"
BOTH = entitlement("c 1:0 rw", "c 1:1 rw")
FRESH = entitlement("c 1:0 rw", "c 1:1 rw", settled=False)
IN_FORCE = RuleSet.of("c 1:0 rw", "c 1:1 rw")
NONE_LEFT = RuleSet.of("c 5:0 rwm")


@pytest.mark.parametrize(
    ("seen", "known", "state"),
    [
        pytest.param(look(RuleSet(unrestricted=True), None), FRESH, State.UNRESTRICTED, id="unrestricted"),
        pytest.param(look(None, declaration()), FRESH, State.OPAQUE, id="opaque-before-settling"),
        pytest.param(look(None, declaration()), BOTH, State.OPAQUE, id="opaque"),
        pytest.param(look(NONE_LEFT, declaration()), FRESH, State.SETTLING, id="settling-before-lost"),
        pytest.param(look(NONE_LEFT, declaration()), BOTH, State.LOST, id="lost-before-at-risk"),
        pytest.param(look(NONE_LEFT, declaration(GPU0, GPU1)), BOTH, State.LOST, id="lost-though-declared"),
        pytest.param(look(NONE_LEFT, None), BOTH, State.LOST, id="lost-without-systemd"),
        pytest.param(look(RuleSet.of("c 1:0 rw"), declaration()), BOTH, State.PARTIAL, id="partial-before-at-risk"),
        pytest.param(look(RuleSet.of("c 1:0 r", "c 1:1 w"), None), BOTH, State.LOST, id="half-an-access-is-lost"),
        pytest.param(look(IN_FORCE, declaration(GPU0)), BOTH, State.AT_RISK, id="at-risk"),
        pytest.param(look(IN_FORCE, None), BOTH, State.AT_RISK, id="systemd-unknown"),
        pytest.param(look(IN_FORCE, declaration(GPU0, GPU1)), BOTH, State.PROTECTED, id="protected"),
        pytest.param(look(RuleSet.of("c 1:* rwm"), declaration("char-1 rwm")), BOTH, State.PROTECTED, id="wildcards"),
        pytest.param(look(IN_FORCE, declaration(policy=DevicePolicy.AUTO)), BOTH, State.PROTECTED, id="no-policy"),
        pytest.param(look(NONE_LEFT, declaration()), entitlement(), State.PROTECTED, id="entitled-to-nothing"),
    ],
)
def test_the_state_that_is_named_first_wins(seen: Observation, known: Entitlement, state: State) -> None:
    """Where several states hold, the order of State decides; nothing that is unknown counts as false."""
    assert judge(seen, known, guarded).state is state


@pytest.mark.invariant(4)
def test_another_groups_rules_count() -> None:
    """Of a container that is not in its control group the list there says nothing: it is not called protected."""
    seen = replace(look(IN_FORCE, declaration(policy=DevicePolicy.AUTO)), elsewhere="/a.slice")
    verdict = judge(seen, BOTH, guarded)
    assert verdict.state is State.OPAQUE
    assert "/a.slice" in (verdict.reason or "")
    stripped = replace(look(NONE_LEFT, declaration()), elsewhere="/a.slice")
    verdict = judge(stripped, BOTH, guarded)
    assert verdict.state is State.OPAQUE
    assert not verdict.lost | verdict.at_risk | verdict.blocked
    assert not plan(stripped, BOTH, verdict, guarded=guarded, merge=spell, protect=True)


@pytest.mark.invariant(4)
@pytest.mark.parametrize(
    ("effective", "state"),
    [(None, State.OPAQUE), (RuleSet(unrestricted=True), State.UNRESTRICTED), (NONE_LEFT, None), (RuleSet(), None)],
)
def test_without_an_entitlement(effective: Optional[RuleSet], state: Optional[State]) -> None:
    """A list that cannot be read may have been a GPU container's: only one that shows no GPU is no concern."""
    verdict = judge_unknown(look(effective, None), guarded)
    assert (verdict and verdict.state) is state


@pytest.mark.invariant(1)
def test_what_it_may_use_without_an_entitlement_is_excess() -> None:
    """It is told, and so is what may have been given, where that cannot be told for certain."""
    seen = look(RuleSet.of("c 1:0 rw", "c 5:0 rw"), None)
    excess = rules("c 1:0 rw")
    assert judge_unknown(seen, guarded) == Verdict(State.PROTECTED, "nothing was given to it", excess=excess)
    assert judge_unknown(seen, guarded, ["one", "two"]) == Verdict(State.OPAQUE, "one; two", excess=excess)
    stripped = look(RuleSet.of("c 5:0 rw"), None)
    assert judge_unknown(stripped, guarded, ["one"]) == Verdict(State.OPAQUE, "one")


def test_stale_rules_of_nobody() -> None:
    """What the container is not entitled to makes it none the worse."""
    known = entitlement("c 1:0 rw")
    seen = look(RuleSet.of("c 1:0 rw"), declaration(GPU0))
    other = {Rule.parse("c 1:1 rw"): "moved"}
    assert judge(seen, known, guarded, other) == judge(seen, known, guarded)


def test_why_nothing_is_declared_is_no_matter_of_one_that_is_protected() -> None:
    """Unless it is that systemd does not manage it."""
    seen = replace(look(IN_FORCE, declaration(GPU0, GPU1)), refusal="a service")
    assert judge(seen, BOTH, guarded) == Verdict(State.PROTECTED)
    assert judge(replace(seen, declared=None, managed=False), BOTH, guarded) == Verdict(State.PROTECTED, "a service")


class TestDifferences:
    """What differs between the three lists."""

    def test_of_all_three(self) -> None:
        """Lost, at risk and in excess are told by rule, for guarded devices alone."""
        seen = look(RuleSet.of("c 1:1 rw", "c 1:2 rw", "c 1:3 m", "c 9:9 rw"), declaration(GPU0))
        assert judge(seen, BOTH, guarded) == Verdict(
            State.PARTIAL,
            None,
            lost=rules("c 1:0 rw"),
            at_risk=rules("c 1:1 rw"),
            excess=rules("c 1:2 rw"),
        )

    def test_more_access_than_was_given_is_excess(self) -> None:
        """An entry for an entitled device with more access than the entitlement has is in excess."""
        seen = look(RuleSet.of("c 1:0 rwm"), declaration(GPU0))
        assert judge(seen, entitlement("c 1:0 rw"), guarded).excess == rules("c 1:0 rwm")

    def test_what_was_released_is_no_excess(self) -> None:
        """A device that was given and then released is neither lost nor in excess, whatever its access."""
        seen = look(RuleSet.of("c 1:0 rwm", "c 1:1 rw"), declaration(GPU1))
        known = entitlement("c 1:1 rw", released=["c 1:0"])
        assert judge(seen, known, guarded) == Verdict(State.PROTECTED)

    @given(FULL_LOOKS, ENTITLEMENTS)
    def test_lost_and_at_risk_are_what_the_lists_do_not_cover(self, seen: Observation, known: Entitlement) -> None:
        """Every entitled rule is lost exactly if the kernel's list lacks it, at risk exactly if systemd's does."""
        verdict = judge(seen, known, guarded)
        if seen.effective is None or seen.effective.unrestricted:
            return
        effective, declared = seen.effective, seen.declared
        assert verdict.lost == {rule for rule in known.rules if not effective.covers(rule)}
        assert verdict.at_risk == {rule for rule in known.rules if declared is not None and not declared.covers(rule)}

    @pytest.mark.invariant(1)
    @given(FULL_LOOKS, ENTITLEMENTS)
    def test_lost_and_excess_have_nothing_in_common(self, seen: Observation, known: Entitlement) -> None:
        """What is in excess is guarded, in force and not entitled: it can never be taken for a loss."""
        verdict = judge(seen, known, guarded)
        assert verdict.lost <= known.rules
        assert all(guarded(rule) and not RuleSet(known.rules).covers(rule) for rule in verdict.excess)


@pytest.mark.invariant(4)
class TestUnknown:
    """Unknown is a value of its own."""

    def test_an_unreadable_list_is_no_loss(self) -> None:
        """Of a list that cannot be read nothing is said but why."""
        seen = look(None, declaration(), trouble="cannot read devices.list: Input/output error")
        assert judge(seen, BOTH, guarded) == Verdict(State.OPAQUE, "cannot read devices.list: Input/output error")

    def test_systemd_s_silence_is_no_lack(self) -> None:
        """When systemd cannot be asked no rule counts as undeclared, and the container not as protected."""
        seen = look(IN_FORCE, None, trouble="systemd cannot be asked: no bus")
        assert judge(seen, BOTH, guarded) == Verdict(State.AT_RISK, "systemd cannot be asked: no bus")

    @given(FULL_LOOKS, ENTITLEMENTS)
    def test_protected_is_said_only_of_what_was_seen_to_be(self, seen: Observation, known: Entitlement) -> None:
        """`protected` needs both lists, read, and every entitled rule in each of them."""
        if judge(seen, known, guarded).state is State.PROTECTED:
            assert seen.effective is not None
            assert seen.declared is not None
            assert all(seen.effective.covers(rule) and seen.declared.covers(rule) for rule in known.rules)


class TestReasons:
    """Why a container is not protected."""

    @pytest.mark.parametrize(
        ("seen", "reason"),
        [
            (look(IN_FORCE, declaration()), "systemd does not know these devices"),
            (look(IN_FORCE, declaration(GPU0, GPU1, disk=["c 1:0 rw"])), "the unit's files on disk do not say"),
            (look(IN_FORCE, declaration(GPU0, disk=[])), "systemd does not know these devices"),
            (look(IN_FORCE, declaration(), refusal="BPFProgram="), "BPFProgram="),
            (look(IN_FORCE, None), "systemd cannot be asked"),
            (look(None), "the kernel's list cannot be read"),
            (look(RuleSet(unrestricted=True)), "no device filter"),
            (look(IN_FORCE, declaration(GPU0, GPU1)), None),
            (look(NONE_LEFT, declaration()), None),
            (look(NONE_LEFT, declaration(), refusal="BPFProgram="), None),
        ],
    )
    def test_are_told(self, seen: Observation, reason: Optional[str]) -> None:
        """Memory, disk, a refusal and a failure to read are told apart; a loss speaks for itself."""
        told = judge(seen, BOTH, guarded).reason
        assert told is None if reason is None else told is not None and told.startswith(reason)

    def test_files_that_a_reload_would_read_are_a_risk(self) -> None:
        """What systemd has in memory but not on disk is at risk: a reload reads the files."""
        seen = look(IN_FORCE, declaration(GPU0, GPU1, disk=["c 1:1 rw"]))
        assert judge(seen, BOTH, guarded).at_risk == rules("c 1:0 rw")
