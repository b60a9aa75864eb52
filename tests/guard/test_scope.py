"""What the guard remembers of a scope, and when that is enough."""

from __future__ import annotations

from typing import Optional

import pytest

from gpuguard.guard.scope import Scope
from gpuguard.model.device_list import DeviceList
from gpuguard.model.grant import Grant, Source
from gpuguard.model.plan import Plan
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.runtime_record import RuntimeRecord
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict
from tests.guard.made import GPU0, GPU1, entitled, scope
from tests.model.looks import declaration, rules

LIST = RuleSet.of(GPU0)
SEEN = DeviceList(7, LIST)
ENTITLED = entitled(GPU0)
DECLARED = declaration("/dev/char/195:0 rw")


class TestCalm:
    """When the clock need not look closer."""

    @pytest.mark.parametrize("state", [State.PROTECTED, State.AT_RISK, State.UNRESTRICTED])
    def test_with_the_same_list_and_nothing_to_do(self, state: State) -> None:
        """An unchanged list of a container for which nothing can be done is left alone, for five minutes."""
        it = scope(state, known=ENTITLED, effective=LIST, declared=DECLARED)
        assert it.calm(399.9, SEEN, ())
        assert not it.calm(400.0, SEEN, ())

    def test_without_anything_to_guard(self) -> None:
        """A container without guarded devices is never looked at closer while its list stays the same."""
        assert scope(None, effective=LIST).calm(1e9, SEEN, ())

    def test_not_while_a_grant_waits_for_the_end_of_the_start(self) -> None:
        """That changes no list; ten minutes are enough, since what was released or refused waits for ever."""
        it = scope(None, effective=LIST)
        it.record = RuntimeRecord(grants=(Grant(next(iter(LIST)), Source.SPEC, "a file"),))
        it.known_since = 1000.0
        assert not it.calm(1599.0, SEEN, ())
        assert it.calm(1600.0, SEEN, ())

    @pytest.mark.parametrize("state", [State.SETTLING, State.OPAQUE, State.LOST, State.PARTIAL, State.STALE, None])
    def test_not_in_any_other_state(self, state: Optional[State]) -> None:
        """What is settling, lost or cannot be read is looked at again each time."""
        assert not scope(state, known=ENTITLED, effective=LIST, declared=DECLARED).calm(100.0, SEEN, ())

    def test_not_with_another_list(self) -> None:
        """A list that has changed is looked at."""
        it = scope(known=ENTITLED, effective=LIST, declared=DECLARED)
        assert not it.calm(100.0, DeviceList(7, RuleSet.of(GPU0, GPU1)), ())

    def test_not_with_other_files(self) -> None:
        """A drop-in that came or went may change what the next reload writes."""
        it = scope(known=ENTITLED, effective=LIST, declared=DECLARED)
        assert it.calm(100.0, SEEN, ())
        assert not it.calm(100.0, SEEN, (1,))
        assert it.outdated(100.0, (1,))

    def test_not_with_a_plan(self) -> None:
        """What could not be done yet is tried again."""
        it = scope(State.AT_RISK, known=ENTITLED, effective=LIST, declared=DECLARED)
        it.plan = Plan(declare=DECLARED.entries)
        assert not it.calm(100.0, SEEN, ())

    def test_not_before_systemd_was_asked(self) -> None:
        """Without any answer of systemd there is more to find out."""
        it = scope(State.AT_RISK, known=ENTITLED, effective=LIST)
        it.view = None
        assert not it.calm(100.0, SEEN, ())


@pytest.mark.parametrize(
    ("now", "known", "outdated"), [(399.9, True, False), (400.0, True, True), (100.0, False, True)]
)
def test_systemd_s_answer_is_good_for_five_minutes(now: float, known: bool, outdated: bool) -> None:
    """An answer is used for five minutes, since files change without a signal; no answer is asked for again at once."""
    assert scope(declared=DECLARED if known else None).outdated(now, ()) is outdated


def test_without_a_view_systemd_is_asked() -> None:
    """A new scope's first look asks systemd."""
    it = scope()
    it.view = None
    assert it.outdated(100.0, ())


class TestReason:
    """Why the state is not better."""

    def test_is_the_verdict_s(self) -> None:
        """The verdict says why."""
        assert scope(verdict=Verdict(State.OPAQUE, "cannot read")).reason == "cannot read"

    def test_is_the_missing_spelling_where_there_is_none(self) -> None:
        """At risk for want of a spelling is told with the rules that have none."""
        it = scope(verdict=Verdict(State.AT_RISK, "systemd does not know these devices"))
        it.plan = Plan(undeclarable=tuple(rules("c *:77 rw")))
        assert it.reason == "undeclarable: systemd has no spelling for c *:77 rw"

    def test_stale_numbers_before_what_systemd_cannot_be_told(self) -> None:
        """A restart of the container is what helps, whatever else keeps systemd from being told."""
        it = scope(verdict=Verdict(State.STALE, "restart"))
        it.plan = Plan(narrowed=tuple(rules("c 510:0 rw")))
        assert it.reason == "restart"

    def test_says_what_the_shield_keeps(self) -> None:
        """Under the shield what systemd does not know is kept; of what is well there is nothing to say."""
        it = scope(verdict=Verdict(State.AT_RISK, "systemd does not know these devices"))
        it.shielded = True
        assert it.reason == "systemd does not know these devices; the shield keeps it"
        it.verdict = Verdict(State.PROTECTED)
        assert not it.reason

    def test_is_none_before_the_first_look(self) -> None:
        """Nothing is known of a scope that nobody looked at."""
        it = scope(None)
        assert (it.state, it.reason) == (None, None)


@pytest.mark.parametrize(
    ("it", "settling"),
    [(scope(known=entitled(GPU0, settled=False)), True), (scope(known=ENTITLED), False), (scope(), False)],
)
def test_settling_is_an_entitlement_that_is_provisional(it: Scope, settling: bool) -> None:
    """A scope settles while its entitlement is not settled; without one there is nothing to settle."""
    assert it.settling is settling
