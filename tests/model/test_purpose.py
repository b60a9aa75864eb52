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


def test_an_empty_list_is_no_purpose() -> None:
    """One that held nothing but what the container is owed was emptied all the same."""
    assert on_purpose(ADMIN, RuleSet.of(*GPUS), RuleSet(), rules(*GPUS)) == frozenset()
    assert on_purpose(ADMIN, RuleSet.of(*GPUS), RuleSet.of(GPUS[0]), rules(*GPUS)) == rules(GPUS[1])


def test_parts_of_what_was_taken() -> None:
    """A wildcard and a device of its go together, as does each access of a device; anything else makes it a loss."""
    owed = rules("c 1:* rw", "c 1:0 rw")
    before, after = RuleSet.of(*BASICS, "c 1:* rw", "c 1:0 rw", "c 1:5 r", "c 1:0 m"), RuleSet.of(*BASICS)
    assert on_purpose(ADMIN, before, after, owed) == owed
    assert on_purpose(ADMIN, RuleSet(before.rules | rules("c 2:0 r")), after, owed) == frozenset()
    assert on_purpose(ADMIN, before, before, owed) == frozenset()


@given(st.frozensets(CLOSE_RULES), st.frozensets(CLOSE_RULES), st.frozensets(CLOSE_RULES))
def test_only_what_was_there_and_is_not(before: frozenset[Rule], after: frozenset[Rule], owed: frozenset[Rule]) -> None:
    """Whatever the lists: nothing is taken that is still in force, that was not there, or that nobody is owed."""
    for rule in on_purpose(ADMIN, RuleSet(before), RuleSet(after), owed):
        assert rule in owed
        assert RuleSet(before).covers(rule)
        assert not RuleSet(after).covers(rule)
