"""What a reload would do: for one rule, and in a sentence."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.device_filter import DeviceFilter, Owner, accepted_by_all
from gpuguard.model.explanation import Denier
from gpuguard.model.observation import Declared
from gpuguard.model.reload import in_force_v1, in_force_v2, reload_sentence
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State
from tests.model.explained import UNDECLARED, UNSPELT, compared, explained, lost
from tests.model.looks import DECLARED, FILTERED, GROUP, declaration
from tests.model.programs import SLICE, runtime, systemd, unknown
from tests.model.strategies import CLOSE_RULES

LINE, ENTRY, TTY = "c 195:0 rw", "/dev/char/195:0 rw", "/dev/char/5:0 rwm"
GPU0 = Rule.parse(LINE)
KNOWN, OTHER = declaration(ENTRY, TTY), declaration(TTY)
ON_DISK, IN_MEMORY = declaration(TTY, disk=[LINE]), declaration(ENTRY, disk=["c 5:0 rwm"])


class TestV1:
    """systemd denies all and allows what it reads from the files."""

    @pytest.mark.parametrize("effective", [RuleSet.of(LINE), RuleSet(), None])
    @pytest.mark.parametrize(
        ("declared", "kept"), [(KNOWN, True), (OTHER, False), (ON_DISK, True), (IN_MEMORY, False), (None, None)]
    )
    def test_what_is_declared(self, effective: Optional[RuleSet], declared: Optional[Declared], kept: bool) -> None:
        """Disk decides, whatever is in memory and in force."""
        assert in_force_v1(GPU0, effective, declared, shield=False, denied_above=False) is kept

    def test_under_a_shield(self) -> None:
        """Nothing is taken, and what is declared comes back; of what cannot be read nothing is known."""
        assert in_force_v1(GPU0, RuleSet.of(LINE), OTHER, shield=True, denied_above=False) is True
        assert in_force_v1(GPU0, RuleSet(), OTHER, shield=True, denied_above=False) is False
        assert in_force_v1(GPU0, RuleSet(), KNOWN, shield=True, denied_above=False) is True
        assert in_force_v1(GPU0, None, OTHER, shield=True, denied_above=False) is None

    def test_denied_above(self) -> None:
        """What an ancestor denies systemd cannot allow."""
        assert in_force_v1(GPU0, RuleSet(), KNOWN, shield=False, denied_above=True) is False


class TestV2:
    """systemd replaces its own program, and no other."""

    @pytest.mark.parametrize(
        ("filters", "declared", "kept"),
        [
            ([runtime(LINE)], KNOWN, True),
            ([runtime(LINE)], OTHER, False),
            ([runtime(LINE), systemd()], KNOWN, True),
            ([runtime(LINE)], None, None),
            ([runtime()], KNOWN, False),
            ([runtime()], None, False),
            ([runtime(LINE), systemd(on=SLICE)], KNOWN, False),
            ([runtime(LINE), unknown()], KNOWN, None),
            ([runtime(LINE), unknown()], OTHER, False),
            ([runtime(exact=False)], KNOWN, None),
            ([runtime(exact=False)], OTHER, False),
            (None, KNOWN, None),
            (None, OTHER, False),
            (None, None, None),
        ],
    )
    def test_is_told_of_each_program(
        self,
        filters: Optional[list[DeviceFilter]],
        declared: Optional[Declared],
        kept: Optional[bool],
    ) -> None:
        """One that stays and denies decides; one that may be systemd's leaves it open."""
        assert in_force_v2(GPU0, filters, declared, GROUP) is kept

    @given(CLOSE_RULES, FILTERED, st.none() | FILTERED, DECLARED)
    def test_is_what_the_programs_then_accept(
        self, rule: Rule, given_rules: RuleSet, before: Optional[RuleSet], declared: Declared
    ) -> None:
        """The same as to put systemd's next program in the place of the one before and to ask all."""
        runtimes = DeviceFilter(GROUP, 11, Owner.RUNTIME, given_rules)
        now = [runtimes] if before is None else [runtimes, DeviceFilter(GROUP, 12, Owner.SYSTEMD, before)]
        written = declared.memory if declared.disk is None else declared.disk
        then = [runtimes, DeviceFilter(GROUP, 14, Owner.SYSTEMD, written)]
        assert in_force_v2(rule, now, declared, GROUP) is accepted_by_all(then).covers(rule)

    def test_a_program_that_was_asked(self) -> None:
        """What denies a rule that it was asked about denies it for certain."""
        assert in_force_v2(GPU0, [runtime(exact=False)], KNOWN, GROUP, asked=True) is False


class TestSentence:
    """The same in words."""

    def test_nothing(self) -> None:
        """A protected container, and one without a filter."""
        assert reload_sentence(explained(State.PROTECTED, compared())) == "Nothing is taken away."
        assert reload_sentence(explained(State.UNRESTRICTED)) == "Nothing: there is no device filter."

    def test_of_one_in_another_group(self) -> None:
        """Its own list is rewritten, and counts for nothing in it."""
        found = explained(State.OPAQUE, compared(effective=None, after_reload=None), elsewhere="/a.slice")
        said = "Nothing: the rules of /a.slice count for it, and no reload changes those."
        assert reload_sentence(found) == said

    def test_unknown(self) -> None:
        """Neither all nor a part of what is not known is passed over."""
        assert reload_sentence(explained(State.OPAQUE)) == "Cannot be told."
        unclear = compared(memory=None, disk=None, after_reload=None)
        assert reload_sentence(explained(State.AT_RISK, unclear)) == "For c 195:0 rw it cannot be told."

    @pytest.mark.parametrize(
        ("cgroup", "daemon", "end"),
        [
            ("v1", "running", "; the daemon writes that back at once."),
            ("v2", "running", "; the daemon then has systemd give back what systemd has words for."),
            ("v1", "stopped", ", and no daemon is at work to give that back."),
        ],
    )
    def test_what_it_takes(self, cgroup: str, daemon: str, end: str) -> None:
        """Who gives it back is told along."""
        found = explained(State.AT_RISK, UNDECLARED, UNSPELT, cgroup=cgroup, daemon=daemon)
        assert reload_sentence(found) == f"It takes away c 195:0 rw, c *:77 rw{end}"

    def test_what_is_not_guarded(self) -> None:
        """Nobody gives that back."""
        other = compared("c 189:* rwm", guarded=False, entitled=False, memory=False, disk=False, after_reload=False)
        said = reload_sentence(explained(State.PROTECTED, compared(), other))
        assert said == "It takes away c 189:* rwm, which gpuguard does not give back."

    def test_what_was_taken_on_purpose(self) -> None:
        """It comes back where systemd knows it."""
        gone = compared(entitled=False, released=True, effective=False)
        said = reload_sentence(explained(State.PROTECTED, gone))
        assert said == "It gives back c 195:0 rw, which somebody took away on purpose: systemd knows it still."

    def test_what_is_lost(self) -> None:
        """It comes back where systemd knows it, and stays away where not."""
        denier = Denier(GROUP, 12, Owner.SYSTEMD, curable=True)
        known = compared(effective=False, denied_by=(denier,))
        assert reload_sentence(explained(State.LOST, known)) == "It gives back c 195:0 rw, which systemd knows."
        assert reload_sentence(explained(State.LOST, lost(denier))) == "It leaves c 195:0 rw denied."
