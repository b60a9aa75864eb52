"""What a list lacks is what RuleSet says it lacks."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import CgroupUnreadableError
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.sentinel.lists import known, missing, same, unrestricted
from tests.model.strategies import CLOSE_RULES

SETS = st.frozensets(CLOSE_RULES, max_size=5)


@pytest.mark.invariant(1)
@given(SETS.map(RuleSet) | st.just(RuleSet(unrestricted=True)), SETS, SETS)
def test_what_is_written_is_what_is_missing(
    there: RuleSet, undeclared: frozenset[Rule], declared: frozenset[Rule]
) -> None:
    """Exactly the rules that were asked for and are not covered, each once, in the kernel's words."""
    found = missing(there.text().encode(), undeclared, declared)
    assert found.at_once == there.missing(undeclared)
    assert found.later == there.missing(declared)
    assert sorted(found.lines) == sorted(str(rule).encode() for rule in found.at_once)
    assert set(found.every_line) == {str(rule).encode() for rule in found.at_once | found.later}
    assert bool(found) == bool(there.missing(undeclared | declared))


def test_a_list_that_makes_no_sense() -> None:
    """It is unknown: neither empty nor without anything missing."""
    with pytest.raises(CgroupUnreadableError, match="makes no sense"):
        missing(b"\xff", frozenset(), frozenset())
    assert known(b"c 1:3 rwm\nodd\n") is None
    assert known(None) is None
    assert known(b"") == RuleSet()


def test_a_group_without_a_filter() -> None:
    """It shows one line, and nothing of what it denies."""
    assert unrestricted(b"a *:* rwm\n")
    assert not any(map(unrestricted, (None, b"", b"c 1:3 rwm\n")))


@given(SETS)
def test_equal_sets_are_one(rules: frozenset[Rule]) -> None:
    """So that they are told apart at a glance."""
    assert same(rules) is same(frozenset(set(rules)))


@pytest.mark.invariant(10)
def test_long_lists_are_not_kept() -> None:
    """Somebody may add one rule after the other to a list, up to thousands of them."""
    wanted = same(frozenset({Rule.parse("c 195:0 rw")}))
    tracemalloc.start()
    try:
        for most in range(700, 760):
            text = b"".join(b"c 240:%d rw\n" % minor for minor in range(most))
            assert missing(text, wanted, frozenset()).at_once == wanted
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000
