"""Device lists: parsing a whole devices.list and the kernel's matching of many entries."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import RuleError
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet, largest_rules, parse_rules
from tests.model.strategies import ACCESSES, CLOSE_RULES, KINDS, RULES
from tests.model.test_rule import kernel_match

SETS = st.frozensets(CLOSE_RULES, max_size=5).map(RuleSet)
ANY_SETS = SETS | st.just(RuleSet(unrestricted=True))

# What runc and Docker give every container (systemd's and the OCI runtime specification's defaults).
DEFAULTS = (
    "c 1:3 rwm",
    "c 1:5 rwm",
    "c 1:7 rwm",
    "c 1:8 rwm",
    "c 1:9 rwm",
    "c 5:0 rwm",
    "c 5:2 rwm",
    "c 10:200 rwm",
    "c 136:* rwm",
    "c *:* m",
    "b *:* m",
)


class TestText:
    """A device list as text."""

    @given(st.frozensets(RULES).map(RuleSet))
    def test_reads_what_it_writes(self, rules: RuleSet) -> None:
        """Writing a set and reading it again gives the same set."""
        assert RuleSet.parse(rules.text()) == rules

    def test_allow_all_is_no_filter(self) -> None:
        """The line `a *:* rwm` makes the whole list unrestricted, and is written back."""
        rules = RuleSet.parse("a *:* rwm\n")
        assert rules.unrestricted
        assert rules.text() == "a *:* rwm\n"

    def test_an_empty_list_is_a_filter(self) -> None:
        """An empty devices.list denies everything; it is not the same as no filter."""
        assert not RuleSet.parse("").covers(Rule.parse("c 1:3 r"))

    @pytest.mark.parametrize("text", ["c 1:3 rwm\ngarbage\n", "a *:* r\n", "a 1:* rwm\n", "c 1:3"])
    def test_refuses_a_list_with_an_odd_line(self, text: str) -> None:
        """One line that is no rule makes the whole list unreadable, never a shorter list."""
        with pytest.raises(RuleError):
            RuleSet.parse(text)

    def test_rules_are_in_people_s_order(self) -> None:
        """Blocks first, then by number as numbers, wildcards before all."""
        rules = RuleSet.of("c 195:0 rw", "c 5:0 rw", "c *:* m", "b 8:0 r", "c 195:* m")
        assert [str(rule) for rule in rules] == ["b 8:0 r", "c *:* m", "c 5:0 rw", "c 195:* m", "c 195:0 rw"]

    def test_rules_that_must_be_rules(self) -> None:
        """No rule at all, and the allow-all line, are refused where single rules are wanted."""
        assert parse_rules(["c 195:0 rw"]) == {Rule.parse("c 195:0 rw")}
        with pytest.raises(RuleError, match="no rule at all"):
            parse_rules([])
        with pytest.raises(RuleError):
            parse_rules(["a *:* rwm"])


class TestCovers:
    """What the kernel would permit."""

    @given(SETS, CLOSE_RULES)
    def test_agrees_with_the_kernel(self, rules: RuleSet, asked: Rule) -> None:
        """A list covers a rule when the kernel finds one entry for it."""
        assert rules.covers(asked) == any(kernel_match(entry, asked) for entry in rules)

    @given(SETS, CLOSE_RULES)
    def test_a_covered_rule_s_devices_are_all_permitted(self, rules: RuleSet, asked: Rule) -> None:
        """Whatever device and access a covered rule stands for, the kernel permits that one request."""
        if not rules.covers(asked):
            return
        majors = [asked.major] if asked.major is not None else [0, 1, 2, 3]
        minors = [asked.minor] if asked.minor is not None else [0, 1, 2, 3]
        accesses = [Access(bits) for bits in range(1, 8) if not bits & ~asked.access]
        for major, minor, access in product(majors, minors, accesses):
            request = Rule(asked.kind, major, minor, access)
            assert any(kernel_match(entry, request) for entry in rules)

    def test_two_entries_do_not_add_up(self) -> None:
        """`c 195:* m` and `c 195:0 r` do not permit rm: one entry must hold all the bits."""
        rules = RuleSet.of("c 195:* m", "c 195:0 r")
        assert not rules.covers(Rule.parse("c 195:0 rm"))
        assert rules.covers(Rule.parse("c 195:0 r"))

    def test_no_filter_covers_all(self) -> None:
        """A group without a filter permits everything."""
        assert RuleSet(unrestricted=True).covers(Rule.parse("c *:* rwm"))


class TestIntersection:
    """Several filters, all of which must permit."""

    @given(ANY_SETS, ANY_SETS, st.tuples(KINDS, st.integers(0, 3), st.integers(0, 3), ACCESSES))
    def test_permits_what_both_permit(self, one: RuleSet, other: RuleSet, asked: tuple[str, int, int, Access]) -> None:
        """For each device and access, the intersection says yes when both do."""
        request = Rule(*asked)
        assert one.intersection(other).covers(request) == (one.covers(request) and other.covers(request))

    @given(ANY_SETS, ANY_SETS, CLOSE_RULES)
    def test_covers_what_both_cover(self, one: RuleSet, other: RuleSet, rule: Rule) -> None:
        """The same for a rule with wildcards."""
        assert one.intersection(other).covers(rule) == (one.covers(rule) and other.covers(rule))

    @given(ANY_SETS, ANY_SETS, ANY_SETS)
    def test_the_order_does_not_matter(self, one: RuleSet, other: RuleSet, third: RuleSet) -> None:
        """Any order of filters comes to the same rules."""
        both = one.intersection(other)
        assert both == other.intersection(one)
        assert both.intersection(third) == one.intersection(other.intersection(third))

    @given(ANY_SETS, ANY_SETS)
    def test_no_rule_is_covered_by_another(self, one: RuleSet, other: RuleSet) -> None:
        """The result is as short as it can be."""
        both = one.intersection(other)
        assert not any(entry.covers(rule) for entry in both for rule in both if entry != rule)

    @given(ANY_SETS)
    def test_no_filter_changes_nothing(self, rules: RuleSet) -> None:
        """A level without a filter leaves the other's rules, without those that others cover."""
        shortest = rules.intersection(RuleSet(unrestricted=True))
        assert shortest == RuleSet(unrestricted=True).intersection(rules) == rules.intersection(rules)
        assert shortest == RuleSet(largest_rules(rules.rules), rules.unrestricted)

    def test_runc_and_systemd(self) -> None:
        """After a reload: the runtime's program has the GPU, systemd's has not."""
        runtime = RuleSet.of("c *:* m", "c 1:3 rwm", "c 136:* rwm", "c 195:0 rw")
        systemd = RuleSet.of("c *:* m", "c 1:3 rwm", "c 136:* rw")
        assert runtime.intersection(systemd) == RuleSet.of("c *:* m", "c 1:3 rwm", "c 136:* rw")

    @given(CLOSE_RULES, CLOSE_RULES)
    def test_two_rules(self, one: Rule, other: Rule) -> None:
        """One rule and another come to one rule, or to none."""
        meet = one.meet(other)
        both = RuleSet(frozenset([one])).intersection(RuleSet(frozenset([other])))
        assert both == RuleSet(frozenset() if meet is None else frozenset([meet]))


class TestFieldReports:
    """Lists that people posted: what was lost is seen as lost."""

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            # NVIDIA/nvidia-container-toolkit#251
            (("c 195:0 rw", "c 195:254 rw", "c 195:255 rw"), ("c 195:* m",)),
            # NVIDIA/nvidia-docker#1618
            (("c 195:0 rw", "c 195:255 rw", "c 507:0 rw"), ("c 195:* m", "c 507:* m")),
            # NVIDIA/nvidia-container-toolkit#192
            (("c 195:7 rw", "c 195:255 rw", "c 508:0 rw", "c 508:1 rw"), DEFAULTS),
        ],
        ids=["toolkit-251", "docker-1618", "toolkit-192"],
    )
    def test_mknod_left_over_hides_no_loss(self, before: tuple[str, ...], after: tuple[str, ...]) -> None:
        """A list that still lets a container make the nodes, but not open them, misses every GPU rule."""
        wanted = parse_rules(before)
        assert RuleSet.of(*before).missing(wanted) == frozenset()
        assert RuleSet.of(*after).missing(wanted) == wanted

    def test_the_defaults_are_not_lost(self) -> None:
        """The same stripped list still covers what it kept."""
        rules = parse_rules(DEFAULTS)
        assert RuleSet(rules).missing(rules) == frozenset()
