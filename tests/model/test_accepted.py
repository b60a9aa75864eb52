"""The rules that a device program comes down to: exact, or none at all."""

from __future__ import annotations

import contextlib
import random
import time
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ProgramError
from gpuguard.model import accepted as module
from gpuguard.model.accepted import accepted, accepted_code
from gpuguard.model.device_program import Program, decode
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet, largest_rules
from tests.lab import device_programs
from tests.lab.device_programs import HEADER, answer, block, instruction, number, runc, runc_rc93
from tests.lab.random_programs import random_program
from tests.model.shapes import READ_BACK
from tests.model.strategies import ACCESSES, CLOSE_RULES, KINDS, RULES

ALL = (Rule("b", None, None, Access.RWM), Rule("c", None, None, Access.RWM))
ANYTHING = RuleSet(unrestricted=True)
NUMBERS = 3  # of majors and minors in random programs; one more stands for all others
ASKED = (Access.MKNOD, Access.READ, Access.WRITE, Access.RW)  # the kernel asks for no others
GRID = list(product("bc", range(NUMBERS + 1), range(NUMBERS + 1), ASKED))


def rules(*lines: str) -> list[Rule]:
    """Return rules, in order."""
    return [Rule.parse(line) for line in lines]


def as_accepted(given: list[Rule]) -> RuleSet:
    """Return what a program should come down to that grants these rules."""
    largest = largest_rules(given)
    return ANYTHING if largest == frozenset(ALL) else RuleSet(largest)


class TestShapes:
    """Programs as they are written."""

    @given(st.sampled_from(sorted(READ_BACK)), st.lists(CLOSE_RULES | RULES, max_size=12), st.randoms())
    def test_gives_back_the_rules(self, shape: str, given: list[Rule], choose: random.Random) -> None:
        """A program made from rules comes down to these rules, without those that others cover."""
        assert accepted(decode(READ_BACK[shape](given, choose))) == as_accepted(given)

    @pytest.mark.invariant(1)
    @given(
        st.sampled_from(sorted(READ_BACK)),
        st.lists(CLOSE_RULES, max_size=8),
        st.randoms(),
        st.tuples(KINDS, st.integers(0, 3), st.integers(0, 3), ACCESSES),
    )
    def test_covers_what_the_program_permits(
        self, shape: str, given: list[Rule], choose: random.Random, asked: tuple[str, int, int, Access]
    ) -> None:
        """Following all paths and running one of them never disagree."""
        program = decode(READ_BACK[shape](given, choose))
        assert accepted(program).covers(Rule(*asked)) == permits(program, *asked)

    def test_the_hook_on_docker(self) -> None:
        """NVIDIA's prefixes, nested in front of runc's program, add their devices."""
        program = device_programs.hook(runc(rules("c *:* m", "c 1:3 rwm")), rules("c 195:255 rw", "c 195:0 rw"))
        assert accepted_code(program) == RuleSet.of("c *:* m", "c 1:3 rwm", "c 195:0 rw", "c 195:255 rw")

    def test_no_filter(self) -> None:
        """A privileged container's program allows all."""
        assert accepted(decode(answer(allow=True))) == ANYTHING
        assert accepted(decode(HEADER + answer(allow=True))) == ANYTHING

    def test_all_kinds_with_all_access_are_no_filter(self) -> None:
        """`char-* rwm` and `block-* rwm` leave nothing that is denied."""
        assert accepted(decode(device_programs.systemd(ALL))) == ANYTHING
        assert accepted(decode(device_programs.systemd(ALL[:1]))) == RuleSet.of("b *:* rwm")

    def test_nothing(self) -> None:
        """A program that denies all is an empty list, which is a filter."""
        assert accepted(decode(answer(allow=False))) == RuleSet()

    def test_crun_s_first_denial(self) -> None:
        """The denial of everything that OCI specs begin with is the last thing that crun's program asks."""
        spec = [(rule, False) for rule in ALL] + [(rule, True) for rule in rules("c *:* m", "c 195:0 rw")]
        assert accepted(decode(device_programs.crun(spec))) == RuleSet.of("c *:* m", "c 195:0 rw")

    def test_a_denial_that_changes_nothing(self) -> None:
        """What is denied and allowed again later counts as allowed."""
        spec = [(Rule.parse("c 195:0 rwm"), False), (Rule.parse("c 195:* rwm"), True)]
        assert accepted(decode(device_programs.crun(spec))) == RuleSet.of("c 195:* rwm")

    def test_numbers_that_no_device_has_are_left_out(self) -> None:
        """A program may name majors and minors beyond the kernel's: they are never asked for."""
        major = block([(b"", (0x55, 4, 0, 4096))], answer(allow=True))
        minor = block([(b"", (0x55, 5, 0, 1 << 20))], answer(allow=True))
        negative = block([(b"", (0x55, 4, 0, -1))], answer(allow=True))
        assert accepted(decode(HEADER + major + minor + negative + answer(allow=False))) == RuleSet()


class TestNeverAsked:
    """What a program says of an access that no system call asks for does not keep it from being rules."""

    @staticmethod
    def overlapping(*lines: str) -> bytes:
        """Return a program as runc 1.0.0-rc93 makes it: a rule's access has to share a bit with the one asked for."""
        return runc_rc93(rules(*lines))

    def test_a_part_is_enough(self) -> None:
        """A program that would let `rwm` pass for the sake of m, r or w alone permits what its rules say."""
        given = ("c 195:0 rw", "c 195:1 m", "c 195:2 rwm")
        assert accepted_code(self.overlapping(*given)) == RuleSet.of(*given)

    @pytest.mark.parametrize("wider", ["c *:* m", "c 195:* m", "c *:0 m"])
    def test_mknod_given_for_all_is_given_for_each(self, wider: str) -> None:
        """The program tests its rules in any order; a device with all access keeps it behind `c *:* m`."""
        assert accepted_code(self.overlapping(wider, "c 195:0 rwm")) == RuleSet.of(wider, "c 195:0 rwm")
        assert accepted_code(self.overlapping("c 195:0 rwm", wider)) == RuleSet.of(wider, "c 195:0 rwm")

    def test_but_not_where_it_is_asked(self) -> None:
        """A rule for reading alone lets an open for both pass there: no rule says that."""
        with pytest.raises(ProgramError, match="denies some of c 195:0"):
            accepted_code(self.overlapping("c 195:0 r"))


class TestRefusals:
    """Programs that no list of rules describes."""

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize(
        "spec",
        [
            ["c 195:* rwm", "-c 195:0 rwm"],
            ["c 195:* rwm", "-c 195:0 m"],
            ["c *:* rwm", "-c 195:0 rw"],
            ["c 195:0 rwm", "-c *:0 w"],
            ["b *:* rwm", "c *:* rwm", "-c 10:200 rwm"],
        ],
    )
    def test_a_denial_after_an_allowance(self, spec: list[str]) -> None:
        """An OCI spec may take a part of what it gave: the rest is no list of rules."""
        program = decode(device_programs.crun([(Rule.parse(line.lstrip("-")), line[0] != "-") for line in spec]))
        with pytest.raises(ProgramError, match="denies some of"):
            accepted(program)

    def test_all_but_some(self) -> None:
        """A program of denials, as runc makes for a list that begins with "allow all"."""
        with pytest.raises(ProgramError, match="denies some of"):
            accepted(decode(runc(rules("c 195:0 rwm"), allow=False)))

    @pytest.mark.invariant(10)
    def test_too_many_rules(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Lists are compared rule by rule: a longer one than any runtime makes is not taken."""
        monkeypatch.setattr(module, "MAX_RULES", 3)
        three = rules(*(f"c 195:{minor} rw" for minor in range(3)))
        assert accepted(decode(runc(three))) == RuleSet(frozenset(three))
        with pytest.raises(ProgramError, match="too many rules: 4"):
            accepted(decode(runc([*three, Rule.parse("c 1:3 rwm")])))

    def test_an_access_without_its_parts(self) -> None:
        """A program that allows rw together and not r alone is not a list of rules."""
        both = block([(b"", (0x55, 3, 0, 6))], answer(allow=True))
        with pytest.raises(ProgramError, match="denies some of"):
            accepted(decode(HEADER + both + answer(allow=False)))

    @pytest.mark.parametrize(
        "use",
        [
            instruction(0x25, 4, 0, 0, 100),  # major > 100
            instruction(0x1D, 4, 5),  # major == minor
            instruction(0x1D, 4, 3),  # major == access
            instruction(0x45, 5, 0, 0, 1),  # minor & 1
            instruction(0x57, 4, immediate=0xFF),  # major &= 255
            instruction(0x0F, 3, 4),  # access += major
            instruction(0x15, 1),  # context == 0
            instruction(0xBF, 2, 6),  # an unset register
            instruction(0xBC, 2, 1),  # half an address
            instruction(0x61, 2, 4),  # a load by the major
            instruction(0x05, offset=-1),
        ],
        ids=lambda code: code.hex(),
    )
    def test_other_uses_of_numbers(self, use: bytes) -> None:
        """Majors and minors may be compared for equality with numbers, and nothing else."""
        with pytest.raises(ProgramError):
            accepted(decode(HEADER + use + answer(allow=True)))

    def test_an_end_without_exit(self) -> None:
        """A program that falls off its end says nothing."""
        with pytest.raises(ProgramError, match="end"):
            accepted(decode(HEADER))

    @pytest.mark.parametrize("register", [2, 3, 4, 6])
    def test_an_answer_that_is_none(self, register: int) -> None:
        """The answer must be 0 or 1 for each question."""
        with pytest.raises(ProgramError):
            accepted(decode(HEADER + instruction(0xBF, 0, register) + instruction(0x95)))

    @pytest.mark.invariant(10)
    def test_too_many_paths(self) -> None:
        """A program made to take for ever is given up in seconds."""
        tests = [(4, one) for one in range(600)] + [(5, one) for one in range(600)]
        branches = b"".join(
            instruction(0x55, register, 0, 1, one) + instruction(0x07, 6, immediate=1 << (one % 31))
            for register, one in tests
        )
        end = block([(b"", (0x55, 6, 0, 1))], answer(allow=True)) + answer(allow=False)
        before = time.monotonic()
        with pytest.raises(ProgramError, match="paths"):
            accepted(decode(HEADER + number(6, 0) + branches + end))
        assert time.monotonic() - before < 30


def agree(program: Program) -> bool:
    """Compare all paths with each single question; return whether the program comes down to rules."""
    try:
        found = accepted(program)
    except ProgramError:
        return False
    for asked in GRID:
        assert found.covers(Rule(*asked)) == permits(program, *asked), asked
    return True


@given(st.randoms())
def test_random_programs(choose: random.Random) -> None:
    """Whatever a program does: if it comes down to rules, then they say what it says."""
    agree(decode(random_program(choose, plain=choose.random() < 0.8, numbers=range(NUMBERS))))


def test_some_random_programs_come_down_to_rules() -> None:
    """The test above is not empty: of 300 programs many have rules, and not only none or all."""
    found = []
    choose = random.Random(1)  # noqa: S311  # a test's dice
    for _ in range(300):
        program = decode(random_program(choose, plain=True, numbers=range(NUMBERS)))
        if agree(program):
            found.append(accepted(program))
    assert len(found) > 50
    assert len(set(found)) > 5


@pytest.mark.invariant(10)
@pytest.mark.parametrize(
    "given",
    [
        [Rule("c", number % 4000, number, Access.RW) for number in range(6000)],
        [Rule("c", None, number, Access.RW) for number in range(6000)],
        [Rule("c", number % 4000, None, Access(1 + number % 7)) for number in range(6000)],
    ],
    ids=["numbers", "minors", "majors"],
)
def test_endless_lists_end(given: list[Rule]) -> None:
    """A program of thousands of rules comes down to them, or is given up, in seconds."""
    before = time.process_time()
    with contextlib.suppress(ProgramError):
        assert accepted(decode(runc(given))) == as_accepted(given)
    assert time.process_time() - before < 20


@pytest.mark.parametrize("shape", ["runc", "hook", "systemd"])
def test_three_hundred_rules_do_not_take_long(shape: str) -> None:
    """A long list of GPUs and of capabilities is followed within a second."""
    given = rules("b *:* m", "c *:* m")
    given += [Rule("c", 195 + number // 64, number % 64, Access.RW) for number in range(298)]
    program = decode(READ_BACK[shape](given, random.Random(0)))  # noqa: S311  # a test's dice
    before = time.process_time()
    assert accepted(program) == RuleSet(frozenset(given))
    assert time.process_time() - before < 1
