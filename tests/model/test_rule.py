"""Device rules: parsing, writing, and the kernel's matching of one entry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import RuleError
from gpuguard.model.rule import BLOCK, CHAR, MAX_MAJOR, MAX_MINOR, Access, Rule
from tests.model.strategies import CLOSE_RULES, RULES

WILDCARD = 0xFFFFFFFF


def kernel_match(entry: Rule, asked: Rule) -> bool:
    """Match one entry as match_exception() in security/device_cgroup.c does: on numbers, ~0 for the wildcard."""
    kinds = {CHAR: 2, BLOCK: 1}

    def number(value: object) -> object:
        return WILDCARD if value is None else value

    if kinds[asked.kind] & 1 and not kinds[entry.kind] & 1:
        return False
    if kinds[asked.kind] & 2 and not kinds[entry.kind] & 2:
        return False
    if number(entry.major) not in {WILDCARD, number(asked.major)}:
        return False
    if number(entry.minor) not in {WILDCARD, number(asked.minor)}:
        return False
    return not int(asked.access) & ~int(entry.access)


class TestText:
    """A rule as devices.list has it."""

    @given(RULES)
    def test_reads_what_it_writes(self, rule: Rule) -> None:
        """Writing a rule and reading it again gives the same rule."""
        assert Rule.parse(str(rule)) == rule

    @pytest.mark.parametrize(
        "line",
        ["c 195:0 rw", "c 195:* m", "b *:* m", "c *:77 rw", f"c {MAX_MAJOR}:{MAX_MINOR} rwm", "c 0:0 r"],
    )
    def test_keeps_the_kernel_s_spelling(self, line: str) -> None:
        """A line as the kernel prints it is written back unchanged."""
        assert str(Rule.parse(line)) == line

    @pytest.mark.parametrize(
        "line",
        [
            "",
            "a *:* rwm",
            "c 195:0",
            "c 195:0 ",
            "c 195:0 x",
            "c 195:0 rwmr",
            "d 1:1 r",
            "c -1:0 r",
            "c 195:0 rw\n",
            " c 195:0 rw",
            "c  195:0 rw",
            "c \u0661:0 r",
            f"c {MAX_MAJOR + 1}:0 r",
            f"c 1:{MAX_MINOR + 1} r",
        ],
    )
    def test_refuses_what_is_no_rule(self, line: str) -> None:
        """A line of another form, or with numbers that the kernel cannot hold, is a RuleError."""
        with pytest.raises(RuleError):
            Rule.parse(line)

    @given(st.text())
    def test_any_text_is_a_rule_or_a_rule_error(self, text: str) -> None:
        """No text makes the parser fail in another way, and what it takes is written alike."""
        try:
            rule = Rule.parse(text)
        except RuleError:
            return
        assert Rule.parse(str(rule)) == rule

    def test_long_garbage_is_cut_in_the_message(self) -> None:
        """An error quotes no more than 80 characters of the line."""
        with pytest.raises(RuleError) as raised:
            Rule.parse("x" * 10_000)
        assert len(str(raised.value)) < 200

    def test_access_needs_a_letter(self) -> None:
        """An empty access is refused: it would permit nothing."""
        with pytest.raises(RuleError, match="empty"):
            Access.parse("")

    def test_a_rule_needs_access(self) -> None:
        """A rule without any access cannot be made."""
        with pytest.raises(RuleError, match="permits nothing"):
            Rule(CHAR, 195, 0, Access.NONE)


class TestOpens:
    """Whether a rule lets anybody open the device."""

    @pytest.mark.parametrize(("letters", "opens"), [("r", True), ("w", True), ("rw", True), ("m", False)])
    def test_mknod_alone_opens_nothing(self, letters: str, opens: bool) -> None:
        """Reading or writing opens the device; m alone does not."""
        assert Rule(CHAR, 195, 0, Access.parse(letters)).opens is opens


class TestCovers:
    """Whether one entry permits all that another asks for."""

    @given(RULES)
    def test_is_reflexive(self, rule: Rule) -> None:
        """A rule covers itself."""
        assert rule.covers(rule)

    @given(CLOSE_RULES, CLOSE_RULES, CLOSE_RULES)
    def test_is_transitive(self, wide: Rule, middle: Rule, narrow: Rule) -> None:
        """What covers a coverer covers the covered."""
        if wide.covers(middle) and middle.covers(narrow):
            assert wide.covers(narrow)

    @given(CLOSE_RULES, CLOSE_RULES)
    def test_agrees_with_the_kernel(self, entry: Rule, asked: Rule) -> None:
        """The answer is the one that the kernel's own comparison gives."""
        assert entry.covers(asked) == kernel_match(entry, asked)

    @given(CLOSE_RULES, CLOSE_RULES)
    def test_covering_rules_differ_unless_equal(self, one: Rule, other: Rule) -> None:
        """Two rules that cover each other are the same rule."""
        assert (one.covers(other) and other.covers(one)) == (one == other)
