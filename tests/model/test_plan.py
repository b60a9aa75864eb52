"""The plan: what is written back, what is declared, what waits, and what is never touched."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.device_filter import DeviceFilter, Owner
from gpuguard.model.deviceallow import resolve
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Declared, Observation
from gpuguard.model.plan import Futile, Plan, plan, plan_writes
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.unit import DevicePolicy
from gpuguard.model.verdict import judge
from tests.model.looks import (
    ENTITLEMENTS,
    FACTS,
    FILTERED,
    FULL_LOOKS,
    GROUP,
    OPEN_LOOKS,
    declaration,
    entitlement,
    guarded,
    look,
    rules,
    spell,
)

KNOWN = entitlement("c 1:0 rw", "c 1:1 rw")
GPUS = rules("c 1:0 rw", "c 1:1 rw")
STRUCK = entitlement("c 1:0 rw", "c 1:1 rw", struck=True)
WHOLE = RuleSet.of("c 1:0 rw", "c 1:1 rw", "c 5:0 rwm")
STRIPPED = RuleSet.of("c 5:0 rwm")
TTY, GPU0, GPU1 = "/dev/char/5:0 rwm", "/dev/char/1:0 rw", "/dev/char/1:1 rw"


def planned(
    seen: Observation,
    known: Entitlement = KNOWN,
    *,
    protect: bool = True,
    futile: Optional[Futile] = None,
    second_look: bool = False,
) -> Plan:
    """Judge a look and plan."""
    return plan(
        seen,
        known,
        judge(seen, known, guarded),
        guarded=guarded,
        merge=spell,
        protect=protect,
        futile=futile,
        second_look=second_look,
    )


def written(found: Plan) -> list[str]:
    """Return the rules to write, as lines."""
    return list(map(str, found.write))


def declared(found: Plan) -> list[str]:
    """Return the entries to declare, as a unit file spells them."""
    return list(map(str, found.declare))


class TestWrites:
    """What goes into devices.allow."""

    def test_an_undeclared_loss_is_written_back_at_once(self) -> None:
        """What systemd will not write itself is written back in the first look."""
        found = planned(look(STRIPPED, declaration(TTY)))
        assert written(found) == ["c 1:0 rw", "c 1:1 rw"]
        assert not found.look_again

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("known_to_systemd", [declaration(TTY, GPU0, GPU1), None])
    def test_what_systemd_may_be_about_to_write_is_looked_at_again(self, known_to_systemd: Optional[Declared]) -> None:
        """A missing rule that systemd declares, or may declare for all that is known, waits for a second look."""
        assert planned(look(STRIPPED, known_to_systemd)) == Plan(look_again=True)

    def test_of_two_losses_only_the_undeclared_is_written_at_first(self) -> None:
        """Declared and undeclared losses are told apart, rule by rule."""
        found = planned(look(STRIPPED, declaration(TTY, GPU0)))
        assert written(found) == ["c 1:1 rw"]
        assert found.look_again

    def test_what_is_still_missing_is_written(self) -> None:
        """After the second look everything that is lost is written, and nobody waits any more."""
        found = planned(look(STRIPPED, declaration(TTY, GPU0, GPU1)), second_look=True)
        everything = tuple(sorted(KNOWN.rules, key=str))
        assert found == Plan(lost=everything, write=everything)

    def test_declared_in_memory_alone_is_not_declared(self) -> None:
        """What the files on disk do not say a reload does not write: no second look."""
        found = planned(look(STRIPPED, declaration(TTY, GPU0, GPU1, disk=["c 5:0 rwm"])))
        assert written(found) == ["c 1:0 rw", "c 1:1 rw"]

    @pytest.mark.invariant(1)
    @given(FULL_LOOKS, ENTITLEMENTS, st.booleans())
    def test_are_entitled_rules_just_as_they_were_given(
        self, seen: Observation, known: Entitlement, second_look: bool
    ) -> None:
        """Only entitled rules that are lost are written, with the recorded numbers and access."""
        found = planned(seen, known, second_look=second_look)
        assert set(found.write) <= known.rules
        assert seen.effective is None or set(found.write) <= seen.effective.missing(known.rules)

    @given(FULL_LOOKS, ENTITLEMENTS)
    def test_two_looks_write_everything_that_is_lost(self, seen: Observation, known: Entitlement) -> None:
        """No loss is forgotten: what the first look does not write makes a second one, and that writes it all."""
        verdict = judge(seen, known, guarded)
        first, again = plan_writes(verdict, seen.declared, second_look=False)
        assert set(first) == verdict.lost or again
        assert plan_writes(verdict, seen.declared, second_look=True) == (
            tuple(sorted(verdict.lost, key=lambda rule: rule.sort_key)),
            False,
        )


class TestDeclarations:
    """What systemd is told."""

    def test_protect_before_the_first_loss(self) -> None:
        """What is in force and unknown to systemd is declared although nothing was lost yet."""
        found = planned(look(WHOLE, declaration(TTY)))
        assert declared(found) == [GPU0, GPU1]
        assert not found.write

    def test_not_before_the_first_loss_unless_asked(self) -> None:
        """Without `protect` a container that never lost anything is left alone."""
        assert planned(look(WHOLE, declaration(TTY)), protect=False) == Plan()

    def test_after_a_loss_also_unasked(self) -> None:
        """Without `protect` a container that has lost its devices once is declared."""
        assert declared(planned(look(WHOLE, declaration(TTY)), STRUCK, protect=False)) == [GPU0, GPU1]

    def test_during_a_loss_also_unasked(self) -> None:
        """Without `protect` the loss itself is reason enough."""
        assert declared(planned(look(STRIPPED, declaration(TTY)), protect=False)) == [GPU0, GPU1]

    def test_not_while_settling(self) -> None:
        """Nothing is declared before it is certain what was given, but a loss is written back."""
        found = planned(look(STRIPPED, declaration(TTY)), entitlement("c 1:0 rw", settled=False))
        assert (written(found), declared(found)) == (["c 1:0 rw"], [])

    def test_not_against_a_refusal(self) -> None:
        """A unit that must not be told anything is told nothing; what it loses is written back all the same."""
        found = planned(look(STRIPPED, declaration(TTY), refusal="gated by BPFProgram="))
        assert (written(found), declared(found)) == (["c 1:0 rw", "c 1:1 rw"], [])

    def test_not_again_what_was_in_vain(self) -> None:
        """A declaration that changed nothing is not repeated while systemd says the same."""
        now = declaration(TTY)
        assert planned(look(WHOLE, now), futile=Futile(now, GPUS)) == Plan()

    def test_the_order_of_entries_is_nothing_new(self) -> None:
        """A reload that turns the order round (systemd 252 does) is no reason to try what was in vain again."""
        futile, now = declaration(TTY, GPU0), declaration(GPU0, TTY)
        assert planned(look(WHOLE, now), futile=Futile(futile, GPUS)) == Plan()

    def test_nothing_is_sent_for_what_has_no_spelling(self) -> None:
        """On cgroup v2 a lost rule that cannot be spelt makes nobody write systemd's program anew."""
        known = entitlement("c 1:0 rw", "c *:77 rw")
        stripped = DeviceFilter(GROUP, 9, Owner.SYSTEMD, RuleSet.of("c 1:0 rw"))
        seen = replace(look(stripped.rules, declaration(GPU0)), writable=False, filters=(stripped,))
        found = planned(seen, known)
        assert (found.lost, found.declare, found.undeclarable) == (tuple(rules("c *:77 rw")), (), found.lost)

    def test_again_when_systemd_says_something_else(self) -> None:
        """A declaration that was in vain is tried again once systemd's own list has changed."""
        assert declared(planned(look(WHOLE, declaration(TTY)), futile=Futile(declaration(TTY, GPU0), GPUS))) == [
            GPU0,
            GPU1,
        ]

    def test_again_when_something_else_is_lost(self) -> None:
        """One that was made for other rules says nothing about these, though systemd has declared the same since."""
        now = declaration(TTY)
        assert declared(planned(look(WHOLE, now), futile=Futile(now, rules("c 1:0 rw")))) == [GPU0, GPU1]

    @pytest.mark.invariant(2)
    def test_other_rules_are_declared_along(self) -> None:
        """Other rules that systemd does not know would go with its rewrite of the list, so they are declared along."""
        in_force = RuleSet.of("c 1:0 rw", "c 1:1 rw", "c 5:0 rwm", "c 10:200 rwm", "c 1:9 m", "c *:* m")
        found = planned(look(in_force, declaration(TTY)))
        assert declared(found) == ["char-* m", GPU0, GPU1, "/dev/char/1:9 m", "/dev/char/10:200 rwm"]

    @pytest.mark.invariant(1)
    def test_excess_is_left_alone(self) -> None:
        """A guarded device that nobody is entitled to is neither declared nor taken away."""
        found = planned(look(RuleSet.of("c 1:0 rw", "c 1:1 rwm", "c 1:2 rw"), declaration()))
        assert declared(found) == [GPU0, GPU1]

    def test_other_rules_alone_are_no_reason(self) -> None:
        """Nothing is declared for the sake of devices that are not guarded."""
        in_force = RuleSet.of("c 1:0 rw", "c 1:1 rw", "c 10:200 rwm")
        assert planned(look(in_force, declaration(GPU0, GPU1))) == Plan()

    def test_an_entry_keeps_the_access_that_systemd_has(self) -> None:
        """The access of a path that systemd knows is replaced by what is sent: that is the union of both."""
        found = planned(look(RuleSet.of("c 1:0 rw"), declaration("/dev/char/1:0 m")), entitlement("c 1:0 rw"))
        assert declared(found) == ["/dev/char/1:0 rwm"]

    def test_what_has_no_spelling_is_named(self) -> None:
        """A rule that systemd cannot express is not declared but named; its neighbours are declared."""
        known = entitlement("c *:1 rw", "c 1:0 rw")
        found = planned(look(RuleSet.of("c *:1 rw", "c 1:0 rw"), declaration()), known)
        assert (declared(found), written(found), list(map(str, found.undeclarable))) == ([GPU0], [], ["c *:1 rw"])

    def test_undeclarable_rules_of_others_are_not_named(self) -> None:
        """Only entitled rules are named as undeclarable."""
        found = planned(look(RuleSet.of("c 1:0 rw", "b *:77 rw"), declaration()), entitlement("c 1:0 rw"))
        assert (declared(found), found.undeclarable) == ([GPU0], ())

    @pytest.mark.invariant(9)
    @given(FILTERED, st.none() | FILTERED, ENTITLEMENTS)
    def test_a_unit_without_a_filter_gets_no_entry(
        self, effective: RuleSet, disk: Optional[RuleSet], known: Entitlement
    ) -> None:
        """One entry on a unit with policy auto and an empty list would create a filter: there is none, ever."""
        seen = look(effective, Declared(RuleSet(unrestricted=True), disk, DevicePolicy.AUTO))
        assert not planned(seen, replace(known, settled=True)).declare

    @pytest.mark.invariant(1)
    @given(OPEN_LOOKS, ENTITLEMENTS)
    def test_grant_nothing_new(self, seen: Observation, known: Entitlement) -> None:
        """What the entries mean is entitled, or systemd has it, or it is in force and not guarded; bit by bit."""
        found = planned(seen, replace(known, settled=True))
        assert seen.effective is not None
        assert seen.declared is not None
        others = frozenset(rule for rule in seen.effective if not guarded(rule))
        allowed = [RuleSet(known.rules), RuleSet(others), seen.declared.memory]
        for entry in found.declare:
            for bit in (bit for rule in resolve(entry, FACTS) for bit in bits(rule)):
                assert any(some.covers(bit) for some in allowed), f"{entry} grants {bit}"


def bits(rule: Rule) -> list[Rule]:
    """Return the rule as one rule for each letter of its access."""
    letters = (Access.READ, Access.WRITE, Access.MKNOD)
    return [Rule(rule.kind, rule.major, rule.minor, bit) for bit in letters if rule.access & bit]


class TestNothing:
    """When there is nothing to do."""

    @pytest.mark.invariant(8)
    def test_for_a_healthy_container(self) -> None:
        """What is in force and declared needs nothing."""
        found = planned(look(WHOLE, declaration(TTY, GPU0, GPU1)), STRUCK)
        assert found == Plan()
        assert not found

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("effective", [None, RuleSet(unrestricted=True)], ids=["opaque", "unrestricted"])
    def test_where_nothing_is_known_or_filtered(self, effective: Optional[RuleSet]) -> None:
        """A list that cannot be read, and one without a filter, lead to no deed at all."""
        assert planned(look(effective, declaration()), STRUCK, second_look=True) == Plan()

    @pytest.mark.invariant(9)
    def test_for_systemd_where_it_has_no_filter(self) -> None:
        """Under policy auto without entries everything counts as declared."""
        assert planned(look(WHOLE, declaration(policy=DevicePolicy.AUTO))) == Plan()

    @pytest.mark.parametrize(
        "some", [Plan(write=tuple(rules("c 1:0 r"))), Plan(declare=declaration(GPU0).entries), Plan(look_again=True)]
    )
    def test_is_not_said_of_a_plan_with_something_in_it(self, some: Plan) -> None:
        """A plan to write, to declare or to look again is a plan."""
        assert some


@pytest.mark.invariant(1)
@pytest.mark.parametrize(
    "known",
    [
        replace(KNOWN, released=frozenset({"c 9:1"})),
        replace(KNOWN, drivers=frozenset({("c", 9, "nvidia-uvm")})),
    ],
)
def test_what_was_guarded_is_not_declared_along_when_its_driver_is_gone(known: Entitlement) -> None:
    """Without its driver nobody knows that the major is a GPU's; what was released or never given stays so."""
    seen = look(RuleSet(WHOLE.rules | rules("c 9:1 rw")), declaration())
    assert declared(planned(seen, known)) == [GPU0, GPU1, TTY]
    assert "/dev/char/9:1 rw" in declared(planned(seen))


def test_what_shares_a_major_with_a_guarded_device_is_declared_along() -> None:
    """Each minor of the misc major is another driver's: fuse beside RDMA's rdma_cm."""
    seen = look(RuleSet(WHOLE.rules | rules("c 10:229 rwm")), declaration())
    known = replace(KNOWN, drivers=frozenset({("c", 10, "misc")}))
    assert "/dev/char/10:229 rwm" in declared(planned(seen, known))
