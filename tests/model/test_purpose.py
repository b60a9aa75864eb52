"""Which rules somebody has taken away on purpose; test_revocation has what is made of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.process import Process
from gpuguard.model.purpose import on_purpose
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.model.looks import rules
from tests.model.strategies import CLOSE_RULES

ADMIN = Process(41, "bash", "/usr/bin/bash", control_group="/user.slice/session-3.scope", native=True)
BASICS = ("c 5:0 rwm", "c 9:3 rwm")
GPUS = ("c 1:0 rw", "c 1:7 rw")


def test_a_list_that_is_not_known() -> None:
    """Without the list before or after nothing can be told."""
    known = RuleSet.of(*BASICS, *GPUS)
    assert on_purpose(ADMIN, None, known, rules(*GPUS)) == frozenset()
    assert on_purpose(ADMIN, known, None, rules(*GPUS)) == frozenset()
    assert on_purpose(ADMIN, RuleSet(unrestricted=True), RuleSet.of(*BASICS), rules(*GPUS)) == frozenset()


@given(st.frozensets(CLOSE_RULES), st.frozensets(CLOSE_RULES), st.frozensets(CLOSE_RULES))
def test_only_what_was_there_and_is_not(before: frozenset[Rule], after: frozenset[Rule], owed: frozenset[Rule]) -> None:
    """Whatever the lists: nothing is taken that is still in force, that was not there, or that nobody is owed."""
    for rule in on_purpose(ADMIN, RuleSet(before), RuleSet(after), owed):
        assert rule in owed
        assert RuleSet(before).covers(rule)
        assert not RuleSet(after).covers(rule)
