"""Learning what a container was given: from what, when, and when no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.entitlement import Entitlement, learn, release
from gpuguard.model.observation import Observation
from gpuguard.model.ruleset import RuleSet
from tests.model.looks import ENTITLEMENTS, LOOKS, entitlement, guarded, look, rules

BLIND = st.sampled_from([None, RuleSet(unrestricted=True)])
SETTLE = 2.0


def learnt(known: Optional[Entitlement], seen: Observation, *, reloading: bool = False) -> Optional[Entitlement]:
    """Learn from one look, with a settle time of 2 s."""
    return learn(known, seen, guarded, settle=SETTLE, reloading=reloading, wall_clock=1_700_000_000.0)


class TestFirstLook:
    """A scope that is not known yet."""

    def test_takes_the_guarded_rules_alone(self) -> None:
        """Of a first look the guarded rules are learnt, exactly as they are, and provisionally."""
        seen = look(RuleSet.of("c 1:0 rw", "c 1:1 rwm", "c 5:0 rwm", "b 1:0 rwm"), at=100.0, invocation="a")
        assert learnt(None, seen) == Entitlement(
            seen.unit,
            seen.control_group,
            7,
            "a",
            rules("c 1:0 rw", "c 1:1 rwm"),
            frozenset(),
            settled=False,
            struck=False,
            quiet_since=100.0,
            first_seen=1_700_000_000.0,
        )

    def test_a_container_without_guarded_rules_has_no_entitlement(self) -> None:
        """Without a guarded rule there is nothing to guard; mknod alone opens nothing."""
        assert learnt(None, look(RuleSet.of("c 5:0 rwm", "c 1:0 m"))) is None

    @pytest.mark.invariant(4)
    @given(BLIND)
    def test_learns_nothing_from_what_is_no_list(self, effective: Optional[RuleSet]) -> None:
        """A list that cannot be read, and one without a filter, teach nothing."""
        assert learnt(None, look(effective)) is None


class TestGrowth:
    """While a container starts, its rules come one by one."""

    def test_what_appears_is_added_and_starts_the_quiet_time_again(self) -> None:
        """A rule that a hook writes while the scope is settling is learnt, and the wait begins anew."""
        known = entitlement("c 1:0 rw", settled=False, quiet_since=90.0)
        assert learnt(known, look(RuleSet.of("c 1:0 rw", "c 1:1 rw"), at=100.0)) == replace(
            known, rules=rules("c 1:0 rw", "c 1:1 rw"), quiet_since=100.0
        )

    def test_also_during_a_reload(self) -> None:
        """What a hook writes in the middle of a reload is learnt, provisionally."""
        grown = learnt(entitlement("c 1:0 rw", settled=False), look(RuleSet.of("c 1:1 rw")), reloading=True)
        assert grown == entitlement("c 1:0 rw", "c 1:1 rw", settled=False, quiet_since=100.0)

    def test_a_wider_rule_takes_the_place_of_a_narrower_one(self) -> None:
        """When the kernel's entry gains access, the entitlement has one rule for the device, not two."""
        grown = learnt(entitlement("c 1:0 r", settled=False), look(RuleSet.of("c 1:0 rw")))
        assert grown is not None
        assert grown.rules == rules("c 1:0 rw")

    @pytest.mark.invariant(1)
    @given(st.none() | ENTITLEMENTS, LOOKS, st.booleans())
    def test_every_rule_was_known_or_was_seen(
        self, known: Optional[Entitlement], seen: Observation, reloading: bool
    ) -> None:
        """No rule is invented: each is one of those that were known, or stands in the kernel's list just so."""
        after = learnt(known, seen, reloading=reloading)
        if after is not None:
            in_force = seen.effective.rules if seen.effective is not None else frozenset()
            assert after.rules <= (known.rules if known is not None else frozenset()) | in_force

    @given(ENTITLEMENTS, st.lists(LOOKS, max_size=6))
    def test_what_was_learnt_is_not_unlearnt(self, known: Entitlement, seen: Sequence[Observation]) -> None:
        """Looks at the same scope never take a rule away, however little they show."""
        for one in (one for one in seen if known.belongs_to(one)):
            after = learnt(known, one)
            assert after is not None
            assert not RuleSet(after.rules).missing(known.rules)
            known = after


class TestSettled:
    """Once settled, an entitlement is what it is."""

    @pytest.mark.invariant(1)
    @given(ENTITLEMENTS.filter(lambda known: known.settled), st.lists(LOOKS, min_size=1, max_size=6))
    def test_does_not_change(self, known: Entitlement, seen: Sequence[Observation]) -> None:
        """Whatever appears in the list of a settled scope, its entitlement stays the same."""
        for one in (one for one in seen if known.belongs_to(one)):
            assert learnt(known, one) is known

    @pytest.mark.parametrize(
        ("seen", "reloading"),
        [
            pytest.param(look(RuleSet.of("c 1:0 rw"), at=101.9), False, id="too-early"),
            pytest.param(look(RuleSet.of("c 1:0 rw"), at=102.0), True, id="reload-under-way"),
            pytest.param(look(RuleSet.of("c 5:0 rw"), at=102.0), False, id="not-whole"),
            pytest.param(look(None, at=102.0), False, id="unreadable"),
            pytest.param(look(RuleSet(unrestricted=True), at=102.0), False, id="unrestricted"),
            pytest.param(look(RuleSet.of("c 1:0 rw"), at=102.0, started=101.0), False, id="started-later"),
            pytest.param(look(RuleSet.of("c 1:0 rw"), at=102.0, starting=True), False, id="starting"),
            pytest.param(look(RuleSet.of("c 1:0 rw"), at=699.0, starting=True), False, id="starting-for-long"),
        ],
    )
    def test_does_not_settle_yet(self, seen: Observation, reloading: bool) -> None:
        """It does not settle before its time, during a reload, or while its rules are not all in force."""
        known = entitlement("c 1:0 rw", settled=False, quiet_since=100.0)
        assert learnt(known, seen, reloading=reloading) == known

    def test_settles_after_the_quiet_time(self) -> None:
        """With all rules in force, nobody writing for the settle time and no reload, it settles."""
        known = entitlement("c 1:0 rw", settled=False, quiet_since=100.0)
        seen = look(RuleSet.of("c 1:0 rw", "c 5:0 rw"), at=102.0, started=99.0)
        assert learnt(known, seen) == replace(known, settled=True)

    @pytest.mark.parametrize("starting", [None, False])
    def test_settles_where_the_start_is_over_or_cannot_be_told(self, starting: Optional[bool]) -> None:
        """What cannot be told is not waited for."""
        known = entitlement("c 1:0 rw", settled=False, quiet_since=100.0)
        assert learnt(known, look(RuleSet.of("c 1:0 rw"), at=102.0, starting=starting)) == replace(known, settled=True)

    def test_a_start_that_never_ends_is_not_waited_for(self) -> None:
        """Ten minutes after the last rule what still looks like a start is none."""
        known = entitlement("c 1:0 rw", settled=False, quiet_since=100.0)
        assert learnt(known, look(RuleSet.of("c 1:0 rw"), at=700.0, starting=True)) == replace(known, settled=True)

    def test_grows_while_it_starts(self) -> None:
        """What a hook writes during a start, however long after the last rule, is learnt."""
        known = entitlement("c 1:0 rw", settled=False, quiet_since=100.0)
        grown = learnt(known, look(RuleSet.of("c 1:0 rw", "c 1:1 rw"), at=190.0, starting=True))
        assert grown == replace(known, rules=rules("c 1:0 rw", "c 1:1 rw"), quiet_since=190.0)

    def test_settles_with_the_run_that_it_was_seen_in(self) -> None:
        """An invocation that was not known at the first look is taken when it settles."""
        settled = learnt(entitlement("c 1:0 rw", settled=False), look(RuleSet.of("c 1:0 rw"), invocation="a", at=100.0))
        assert settled == entitlement("c 1:0 rw", invocation="a")


class TestNamesakes:
    """A scope is its control group's inode, and the run that was seen in it."""

    @pytest.mark.invariant(5)
    @pytest.mark.parametrize(
        "other",
        [
            look(inode=8, invocation="a"),
            look(group="/other.slice/docker-x.scope", invocation="a"),
            look(invocation="b"),
        ],
        ids=["inode", "control-group", "invocation"],
    )
    @given(effective=LOOKS.map(lambda seen: seen.effective), known=ENTITLEMENTS)
    def test_inherit_nothing(self, other: Observation, effective: Optional[RuleSet], known: Entitlement) -> None:
        """Another inode, place or invocation begins from nothing, whatever the namesake had."""
        known = replace(known, invocation="a")
        seen = replace(other, effective=effective)
        assert learnt(known, seen) == learnt(None, seen)

    @pytest.mark.parametrize(("before", "now"), [("a", ""), ("", "a"), ("", "")])
    def test_an_unknown_invocation_is_not_another_one(self, before: str, now: str) -> None:
        """A scope is no stranger only because systemd does not tell which run it is."""
        known = entitlement("c 1:0 rw", invocation=before)
        assert learnt(known, look(RuleSet.of("c 1:0 rw"), invocation=now)) is known

    @pytest.mark.invariant(4)
    @given(ENTITLEMENTS, BLIND)
    def test_a_blind_look_changes_nothing(self, known: Entitlement, effective: Optional[RuleSet]) -> None:
        """What cannot be read, or has no filter, neither adds to an entitlement nor ends or settles it."""
        seen = look(effective, at=1000.0, invocation=known.invocation)
        assert learnt(known, seen) is known


class TestRelease:
    """Devices that are taken away on purpose."""

    def test_forgets_the_named_devices_and_keeps_the_others(self) -> None:
        """A release takes the rules of the named devices, whatever their access, and no others."""
        after = release(entitlement("c 1:0 rw", "c 1:1 rw"), frozenset({"c 1:0"}))
        assert after == entitlement("c 1:1 rw", released=["c 1:0"])

    def test_adds_to_what_was_released_before(self) -> None:
        """Two releases forget both devices."""
        after = release(entitlement("c 1:1 rw", "c 1:2 rw", released=["c 1:0"]), frozenset({"c 1:1"}))
        assert after == entitlement("c 1:2 rw", released=["c 1:0", "c 1:1"])

    def test_lasts_while_a_container_starts(self) -> None:
        """What was released is not learnt again from the list that still has it."""
        known = entitlement("c 1:1 rw", settled=False, released=["c 1:0"])
        after = learnt(known, look(RuleSet.of("c 1:0 rw", "c 1:1 rw", "c 1:2 rw")))
        assert after is not None
        assert after.rules == rules("c 1:1 rw", "c 1:2 rw")

    @given(ENTITLEMENTS, st.lists(LOOKS, max_size=6))
    def test_lasts(self, known: Entitlement, seen: Sequence[Observation]) -> None:
        """A released device does not come back, however often it is seen in force."""
        gone = frozenset({"c 1:0", "c 1:*"})
        known = release(known, gone)
        for one in (one for one in seen if known.belongs_to(one)):
            after = learnt(known, one)
            assert after is not None
            assert not gone & {rule.device for rule in after.rules}
            known = after
