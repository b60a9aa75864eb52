"""What the groups inside a container are remembered to have had, and what they are owed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.nested import GroupBelow, Nested, debts, remember, shrunk, strike, without
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.model.looks import rules
from tests.model.strategies import CLOSE_RULES

GPU0, GPU1, FUSE = "c 195:0 rw", "c 195:1 rw", "c 10:229 rwm"
ENTITLED = rules(GPU0, GPU1)

RULES = st.frozensets(CLOSE_RULES, max_size=4)
PLACES = st.sampled_from([("a", 1), ("a", 2), ("a/b", 3), ("c", 4)])
GROUPS = st.builds(lambda at, has: GroupBelow(at[0], at[1], RuleSet(has)), PLACES, RULES)
SEEN = st.lists(GROUPS, unique_by=lambda one: one.path)


def below(path: str, *lines: str, inode: int = 7) -> GroupBelow:
    """Return a group as it is seen."""
    return GroupBelow(path, inode, RuleSet.of(*lines))


def test_only_what_the_scope_is_entitled_to_is_remembered() -> None:
    """Other rules are nobody's concern, and who has none of these is none."""
    seen = [below("a", GPU0, FUSE), below("b", FUSE), below("c", "c 195:1 r"), below("d", "c 195:* rwm")]
    assert remember((), seen, ENTITLED, whole=True) == (
        Nested("a", 7, rules(GPU0)),
        Nested("c", 7, rules("c 195:1 r")),
        Nested("d", 7, ENTITLED),
    )


def test_a_group_without_a_filter_has_nothing_to_lose() -> None:
    """Nothing is to be given to it."""
    assert remember((), [GroupBelow("a", 7, RuleSet(unrestricted=True))], ENTITLED, whole=True) == ()


@pytest.mark.parametrize(("whole", "left"), [(True, rules(GPU1)), (False, rules(GPU0, GPU1))])
def test_what_it_lacks_while_the_scope_is_whole_is_its_own_business(
    whole: bool,
    left: frozenset[object],
) -> None:
    """While the scope itself lacks something, what the group had stays known."""
    known = (Nested("a", 7, rules(GPU0, GPU1)),)
    (group,) = remember(known, [below("a", GPU1)], ENTITLED, whole=whole)
    assert (group.rules, group.owed) == (left, frozenset())


def test_it_is_owed_what_it_had_of_what_the_scope_has_lost() -> None:
    """With the access that it had; once it is there again nothing is owed."""
    known = (Nested("a", 7, rules("c 195:0 r", GPU1)), Nested("b", 8, rules(GPU1)))
    struck = strike(known, rules(GPU0))
    assert [group.owed for group in struck] == [rules("c 195:0 r"), frozenset()]
    after = remember(struck, [below("a", GPU1), below("b", GPU1, inode=8)], ENTITLED, whole=True)
    assert debts(after) == [Nested("a", 7, rules(GPU1), rules("c 195:0 r"))]
    healed = remember(after, [below("a", GPU1, "c 195:0 r"), below("b", GPU1, inode=8)], ENTITLED, whole=True)
    assert healed == known


@pytest.mark.invariant(5)
def test_another_one_of_the_same_name_inherits_nothing() -> None:
    """It is the inode that had it."""
    struck = strike((Nested("a", 7, rules(GPU0)),), rules(GPU0))
    assert remember(struck, [below("a", GPU1, inode=8)], ENTITLED, whole=True) == (Nested("a", 8, rules(GPU1)),)
    assert remember(struck, [], ENTITLED, whole=True) == ()


def test_what_was_meant_is_owed_no_more() -> None:
    """Released and revoked devices are forgotten below as well."""
    known = (Nested("a", 7, rules(GPU0, GPU1), rules(GPU0)), Nested("b", 8, rules(GPU0)))
    assert without(known, frozenset(["c 195:0"])) == (Nested("a", 7, rules(GPU1)),)
    assert remember(known, [below("a"), below("b", inode=8)], rules(GPU1), whole=True) == ()


def test_debts_are_paid_from_the_top() -> None:
    """The kernel lets nobody have what the group above has not."""
    known = tuple(Nested(path, 7, frozenset(), rules(GPU0)) for path in ("a", "a/b", "a/b/c", "b", "b/a"))
    assert [group.path for group in debts(known)] == ["a", "b", "a/b", "b/a", "a/b/c"]


@pytest.mark.parametrize(
    ("seen", "less"),
    [([below("a", GPU0)], False), ([below("a", GPU1)], True), ([below("a", GPU1, inode=8)], False), ([], False)],
)
def test_whether_somebody_has_less(seen: list[GroupBelow], less: bool) -> None:
    """One that is gone or another one has lost nothing."""
    assert shrunk((Nested("a", 7, rules(GPU0)),), seen) is less


@pytest.mark.invariant(1)
@given(st.tuples(SEEN, SEEN), st.tuples(RULES, RULES, RULES), st.booleans())
def test_nobody_is_owed_more_than_it_had_and_the_scope_has_lost(
    looks: tuple[list[GroupBelow], list[GroupBelow]], some: tuple[frozenset[Rule], ...], whole: bool
) -> None:
    """Whatever is seen, lost and released."""
    (first, second), (entitled, lost, left) = looks, some
    struck = strike(remember((), first, entitled, whole=True), lost)
    had = {(group.path, group.inode): group.rules for group in first}
    for group in remember(struck, second, left, whole=whole):
        for rule in group.owed:
            assert had[group.path, group.inode].covers(rule)
            assert all(RuleSet(one).covers(rule) for one in some)
