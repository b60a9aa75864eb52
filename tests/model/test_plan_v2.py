"""The plan on cgroup v2, where systemd alone can give back, and a declaration adds a program that must not narrow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuguard.model.device_filter import DeviceFilter
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Observation
from gpuguard.model.plan import Plan, plan
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict, judge, judge_unknown
from tests.model.looks import GROUP, declaration, entitlement, guarded, look, rules, spell
from tests.model.programs import SLICE, look_at, runtime, systemd, unknown

# Character major 1 is the guarded one.
GPU0, GPU1, TTY, USB, ODD = "c 1:0 rw", "c 1:1 rw", "c 5:0 rwm", "c 189:* rwm", "c *:77 rw"
TTY_ENTRY, GPU0_ENTRY, GPU1_ENTRY = "/dev/char/5:0 rwm", "/dev/char/1:0 rw", "/dev/char/1:1 rw"
KNOWN = entitlement(GPU0)


def planned(seen: Observation, known: Entitlement = KNOWN, *, protect: bool = True, second_look: bool = False) -> Plan:
    """Judge a look and plan."""
    verdict = judge(seen, known, guarded)
    return plan(seen, known, verdict, guarded=guarded, merge=spell, protect=protect, second_look=second_look)


def sent(seen: Observation, known: Entitlement = KNOWN, *, protect: bool = True) -> set[str]:
    """Return the entries of a plan, as a unit file spells them."""
    found = planned(seen, known, protect=protect)
    assert found.write == ()
    return set(map(str, found.declare))


STRIPPED = look_at(runtime(GPU0, TTY, USB), systemd(TTY), declared=declaration(TTY_ENTRY))
"""After a reload: systemd's program stands beside the runtime's."""


class TestDeclare:
    """What is sent to systemd."""

    def test_before_the_loss(self) -> None:
        """A container at risk is declared with all that its runtime gave it: systemd's program must not narrow."""
        seen = look_at(runtime(GPU0, TTY, USB), declared=declaration(TTY_ENTRY))
        assert sent(seen) == {GPU0_ENTRY, "char-189 rwm"}
        assert judge(seen, KNOWN, guarded).state is State.AT_RISK

    def test_after_the_loss(self) -> None:
        """What a reload took is declared, the rest of what the runtime's program accepts along with it."""
        assert sent(STRIPPED) == {GPU0_ENTRY, "char-189 rwm"}
        verdict = judge(STRIPPED, KNOWN, guarded)
        assert (verdict.state, verdict.reason) == (State.LOST, f"systemd's program 12 on {GROUP} denies {GPU0}")
        assert planned(STRIPPED).lost == tuple(KNOWN.rules)

    def test_after_the_loss_even_when_nothing_is_to_be_protected(self) -> None:
        """[guard] declare = false leaves what is at risk, not what is lost."""
        assert sent(STRIPPED, protect=False) == {GPU0_ENTRY, "char-189 rwm"}
        assert sent(look_at(runtime(GPU0, TTY), declared=declaration(TTY_ENTRY)), protect=False) == set()

    def test_what_is_declared_and_still_denied_by_systemds_program(self) -> None:
        """There is a moment for systemd to write it; then any entry of its own makes it write its program anew."""
        seen = look_at(runtime(GPU0, TTY), systemd(TTY), declared=declaration(TTY_ENTRY, GPU0_ENTRY))
        first = planned(seen)
        assert (first.look_again, first.declare, first.lost) == (True, (), ())
        again = planned(seen, second_look=True)
        assert (again.look_again, len(again.declare)) == (False, 1)
        assert {str(entry) for entry in again.declare} <= {TTY_ENTRY, GPU0_ENTRY}

    @pytest.mark.invariant(1)
    def test_no_guarded_device_that_nobody_is_entitled_to(self) -> None:
        """The runtime's program accepts another GPU: that is not declared along."""
        assert sent(look_at(runtime(GPU0, GPU1, TTY), systemd(TTY), declared=declaration(TTY_ENTRY))) == {GPU0_ENTRY}

    @pytest.mark.invariant(1)
    def test_nothing_along_that_no_program_of_the_runtime_accepts(self) -> None:
        """Where no program is known to be the runtime's, only what is in force is declared along."""
        assert sent(look_at(unknown(GPU0, TTY), declared=declaration(TTY_ENTRY))) == {GPU0_ENTRY}

    def test_whatever_systemds_program_lets_through_beside(self) -> None:
        """What it accepted and the runtime's program does not is not in force: nothing is taken away with it."""
        assert sent(look_at(runtime(GPU0, TTY), systemd(TTY, "c 5:1 rw"), declared=declaration(TTY_ENTRY))) == {
            GPU0_ENTRY
        }

    def test_nothing_while_unsettled(self) -> None:
        """The runtime and its hooks come first."""
        assert sent(STRIPPED, entitlement(GPU0, settled=False)) == set()

    def test_nothing_when_all_is_well(self) -> None:
        """A protected container makes no plan."""
        seen = look_at(runtime(GPU0, TTY), systemd(GPU0, TTY), declared=declaration(TTY_ENTRY, GPU0_ENTRY))
        assert planned(seen) == Plan()
        assert judge(seen, KNOWN, guarded).state is State.PROTECTED


@pytest.mark.invariant(2)
class TestNarrowing:
    """A declaration that would take away what is in force is not made."""

    @pytest.mark.parametrize("odd", [ODD, "b *:77 rw"])
    @pytest.mark.parametrize("entitled", [(), (ODD,)])
    def test_what_has_no_spelling_hinders(self, odd: str, entitled: tuple[str, ...]) -> None:
        """`c *:77` is in force and cannot be declared, be it guarded or not, given or not: nothing is."""
        found = planned(look_at(runtime(GPU0, TTY, odd), declared=declaration(TTY_ENTRY)), entitlement(GPU0, *entitled))
        assert found.declare == ()
        assert found.hindrance == f"undeclarable: a declaration would take away {odd}"

    def test_what_has_no_spelling_and_is_gone_hinders_no_more(self) -> None:
        """After a reload it is gone already: the GPU is given back, and nothing is lost by that."""
        assert GPU0_ENTRY in sent(look_at(runtime(GPU0, TTY, ODD), systemd(TTY), declared=declaration(TTY_ENTRY)))

    def test_excess_hinders(self) -> None:
        """A guarded device that nobody is entitled to is not declared, and would be taken away without that."""
        found = planned(look_at(runtime(GPU0, GPU1, TTY), declared=declaration(TTY_ENTRY)))
        assert found.declare == ()
        assert found.hindrance == "undeclarable: a declaration would take away c 1:1 rw"

    def test_a_program_that_cannot_be_followed_hinders(self) -> None:
        """What it accepts beside the devices that were asked about is not known."""
        found = planned(look_at(runtime(GPU0, TTY, exact=False), declared=declaration(TTY_ENTRY)))
        assert found.declare == ()
        assert found.unclear
        assert str(found.hindrance).startswith("undeclarable: what a declaration would take away cannot be told")

    def test_but_not_where_systemd_filters_already(self) -> None:
        """One more entry for systemd's program takes nothing away, whatever the others accept."""
        seen = look_at(runtime(GPU0, TTY, exact=False), systemd(TTY), declared=declaration(TTY_ENTRY))
        assert sent(seen) == {GPU0_ENTRY}

    @pytest.mark.parametrize(
        "other",
        [systemd(GPU0, TTY, on=SLICE), unknown(GPU0, TTY), replace(systemd(GPU0, TTY), exact=False)],
    )
    def test_it_does_where_systemd_s_is_not_known(self, other: DeviceFilter) -> None:
        """Its program for a slice, one that may be another's, and one that was only asked."""
        assert planned(look_at(runtime(GPU0, TTY, exact=False), other, declared=declaration(TTY_ENTRY))).unclear

    def test_nor_where_its_present_program_accepts_more(self) -> None:
        """A glob's major has changed since, and whether the other program accepts the old one has not been asked."""
        seen = look_at(runtime(GPU0, TTY, exact=False), systemd(TTY, "c 510:* rw"), declared=declaration(TTY_ENTRY))
        assert planned(seen).narrowed == tuple(rules("c 510:* rw"))
        assert planned(seen).declare == ()

    def test_what_is_in_force_on_the_scope_hinders(self) -> None:
        """A group below has less than the scope: that is no reason to take it from the scope."""
        below = runtime(GPU0, TTY, on=f"{GROUP}/container")
        seen = look_at(below, runtime(GPU0, TTY, ODD), declared=declaration(TTY_ENTRY))
        assert planned(seen).narrowed == tuple(rules(ODD))
        assert planned(seen).declare == ()
        assert GPU0_ENTRY in sent(look_at(below, declared=declaration(TTY_ENTRY)))

    def test_an_older_program_of_systemd_that_accepts_more_hinders(self) -> None:
        """A glob's major may have changed since systemd wrote its program: writing it anew would take that away."""
        seen = look_at(runtime(GPU0, TTY, USB), systemd(TTY, USB), declared=declaration(TTY_ENTRY))
        assert sent(seen) == {GPU0_ENTRY, "char-189 rwm"}
        excess = look_at(runtime(GPU0, GPU1, TTY), systemd(TTY, GPU1), declared=declaration(TTY_ENTRY))
        assert planned(excess).narrowed


class TestBlocked:
    """A program that is not systemd's denies: no declaration helps."""

    @pytest.mark.parametrize(
        ("culprit", "words"),
        [
            (runtime(TTY), f"the runtime's program 11 on {GROUP}"),
            (systemd(TTY, on=SLICE), f"systemd's program 12 on {SLICE}"),
            (unknown(TTY, on=f"{GROUP}/container"), f"program 13 on {GROUP}/container"),
        ],
    )
    def test_is_told_and_not_tried(self, culprit: DeviceFilter, words: str) -> None:
        """The level, the program and its owner are named; systemd is not called for what it cannot cure."""
        seen = look_at(culprit, runtime(GPU0, TTY), declared=declaration(TTY_ENTRY, GPU0_ENTRY))
        verdict = judge(seen, KNOWN, guarded)
        assert (verdict.state, verdict.blocked) == (State.LOST, KNOWN.rules)
        assert verdict.reason == f"blocked: {words} denies {GPU0}"
        assert planned(seen, second_look=True).declare == ()

    def test_the_others_are_cured(self) -> None:
        """One GPU is denied by the runtime's program, the other by systemd's."""
        known = entitlement(GPU0, GPU1)
        seen = look_at(runtime(GPU1, TTY), systemd(TTY), declared=declaration(TTY_ENTRY))
        verdict = judge(seen, known, guarded)
        assert set(map(str, verdict.blocked)) == {GPU0}
        assert verdict.reason == f"blocked: the runtime's program 11 on {GROUP} denies {GPU0}"
        assert GPU1_ENTRY in sent(seen, known)

    def test_what_stands_beside_systemds_own_is_not_systemds(self) -> None:
        """Where systemd's program is known, an unknown one on the same scope is somebody else's: it blocks."""
        seen = look_at(
            runtime(GPU0, TTY), systemd(GPU0, TTY), unknown(TTY), declared=declaration(TTY_ENTRY, GPU0_ENTRY)
        )
        verdict = judge(seen, KNOWN, guarded)
        assert verdict.reason == f"blocked: program 13 on {GROUP} denies {GPU0}"
        assert planned(seen, second_look=True).declare == ()

    def test_what_may_be_systemds_is_tried(self) -> None:
        """Up to v250 systemd's program has no name."""
        seen = look_at(runtime(GPU0, TTY), unknown(TTY), declared=declaration(TTY_ENTRY))
        assert judge(seen, KNOWN, guarded).blocked == frozenset()
        assert sent(seen) == {GPU0_ENTRY}


@pytest.mark.invariant(9)
class TestGates:
    """A scope without a filter of its own gets none by gpuguard."""

    @pytest.mark.parametrize("filters", [(), (systemd(GPU0, TTY, on=SLICE),)])
    def test_no_program_of_its_own(self, filters: tuple[DeviceFilter, ...]) -> None:
        """Zero programs on the scope: unrestricted, whatever its slice has, and nothing is planned."""
        seen = look_at(*filters, declared=declaration(TTY_ENTRY))
        assert seen.unrestricted
        assert judge(seen, KNOWN, guarded).state is State.UNRESTRICTED
        assert judge_unknown(seen, guarded) == Verdict(State.UNRESTRICTED, "no device filter")
        assert planned(seen) == Plan()

    def test_a_program_that_accepts_everything(self) -> None:
        """A privileged container's program is no filter."""
        seen = look_at(runtime("a *:* rwm"), declared=declaration(TTY_ENTRY))
        assert planned(seen) == Plan()
        assert judge(seen, KNOWN, guarded).state is State.UNRESTRICTED

    def test_what_systemd_must_not_be_told(self) -> None:
        """A unit with BPFProgram=, or of policy auto with an empty list: lost, and said, and nothing sent."""
        seen = look_at(runtime(TTY, GPU0), systemd(TTY), declared=declaration(TTY_ENTRY), refusal="BPFProgram=")
        assert planned(seen).declare == ()
        assert judge(seen, KNOWN, guarded).reason == "BPFProgram="
        blocked = look_at(runtime(TTY), systemd(TTY), declared=declaration(TTY_ENTRY), refusal="BPFProgram=")
        assert str(judge(blocked, KNOWN, guarded).reason).startswith("blocked: ")

    def test_when_systemd_cannot_be_asked(self) -> None:
        """What is lost stays lost for want of an answer, and that is the reason."""
        seen = replace(look_at(runtime(TTY, GPU0), systemd(TTY)), trouble="no bus")
        assert planned(seen, second_look=True).declare == ()
        assert judge(seen, KNOWN, guarded).reason == "no bus"

    def test_v1_has_no_programs_and_is_restricted(self) -> None:
        """On cgroup v1 the list tells alone."""
        assert not look(RuleSet.of(TTY), declaration()).unrestricted
