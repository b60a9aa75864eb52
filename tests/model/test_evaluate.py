"""One question to a device program."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ProgramError
from gpuguard.model.arithmetic import MASK64
from gpuguard.model.device_program import decode
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from tests.lab.device_programs import answer, instruction, number
from tests.model.shapes import READ_BACK
from tests.model.strategies import ACCESSES, CLOSE_RULES, KINDS

# The numbers of linux/bpf.h, so that a test reads like the kernel's instruction-set.rst.
ADD, SUB, MUL, DIV, OR, AND, LSH, RSH, NEG, MOD, XOR, MOV, ARSH = range(0x00, 0xD0, 0x10)
EQ, GT, GE, SET, NE, SGT, SGE, LT, LE, SLT, SLE = (0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0)
TOP = 1 << 63


def says(code: bytes, kind: str = "c", major: int = 195, minor: int = 0, access: Access = Access.RW) -> bool:
    """Ask a program about /dev/nvidia0, unless told otherwise."""
    return permits(decode(code), kind, major, minor, access)


def equals(register: int, value: int) -> bytes:
    """Return the end of a program that allows if the register holds the value."""
    return (
        number(9, value) + instruction(0x1D, register, 9, 2) + answer(allow=False) + answer(allow=True)  # jeq
    )


@given(st.sampled_from(sorted(READ_BACK)), st.lists(CLOSE_RULES, max_size=6), st.randoms(), CLOSE_RULES)
def test_agrees_with_the_rules(shape: str, rules: list[Rule], choose: random.Random, asked: Rule) -> None:
    """A program made from rules, in whatever shape, permits what the rules permit."""
    program = decode(READ_BACK[shape](rules, choose))
    major, minor = asked.major or 0, asked.minor or 0
    wanted = RuleSet(frozenset(rules)).covers(Rule(asked.kind, major, minor, asked.access))
    assert permits(program, asked.kind, major, minor, asked.access) == wanted


@given(KINDS, st.integers(0, 4095), st.integers(0, (1 << 20) - 1), ACCESSES)
def test_the_context_is_the_kernel_s(kind: str, major: int, minor: int, access: Access) -> None:
    """Type and access share a word, type in its low half; major and minor follow."""
    word = {"b": 1, "c": 2}[kind] | int(access) << 16
    loads = {
        (0x61, 0): word,
        (0x69, 0): word & 0xFFFF,
        (0x69, 2): word >> 16,
        (0x71, 0): word & 0xFF,
        (0x71, 1): 0,
        (0x71, 2): word >> 16,
        (0x71, 3): 0,
        (0x61, 4): major,
        (0x61, 8): minor,
    }
    for (opcode, offset), value in loads.items():
        assert says(instruction(opcode, 3, 1, offset) + equals(3, value), kind, major, minor, access)


@pytest.mark.parametrize(
    ("code", "left", "right", "wide", "narrow"),
    [
        (ADD, MASK64, 2, 1, 1),
        (SUB, 1, 2, MASK64, 0xFFFFFFFF),
        (MUL, 1 << 33 | 3, 1 << 31, (1 << 64 | 3 << 31) & MASK64, 3 << 31 & 0xFFFFFFFF),
        (DIV, 7 << 32 | 7, 2, (7 << 32 | 7) // 2, 3),
        (DIV, 7, 0, 0, 0),
        (DIV, TOP, MASK64, 0, 0),
        (MOD, 7 << 32 | 7, 4, 3, 3),
        (MOD, 7 << 32 | 7, 0, 7 << 32 | 7, 7),
        (OR, TOP | 1, 6, TOP | 7, 7),
        (AND, MASK64, 1 << 40 | 5, 1 << 40 | 5, 5),
        (XOR, MASK64, 1, MASK64 - 1, 0xFFFFFFFE),
        (LSH, 1 << 31 | 1, 1, 1 << 32 | 2, 2),
        (LSH, 1, 65, 2, 2),
        (RSH, TOP, 63, 1, 0),
        (RSH, 1 << 31, 33, 0, 1 << 30),
        (ARSH, TOP, 63, MASK64, 0),
        (ARSH, 1 << 31, 31, 1, 0xFFFFFFFF),
        (NEG, 1, 0, MASK64, 0xFFFFFFFF),
        (MOV, 0, 1 << 40 | 9, 1 << 40 | 9, 9),
    ],
)
def test_arithmetic(code: int, left: int, right: int, wide: int, narrow: int) -> None:
    """64-bit operations wrap; 32-bit ones take the low halves and clear the upper one; x/0 is 0 and x%0 is x."""
    for kind, value in ((0x07, wide), (0x04, narrow)):
        operation = instruction(kind | code, 2) if code == NEG else instruction(kind | code | 0x08, 2, 3)
        assert says(number(2, left) + number(3, right) + operation + equals(2, value))


@pytest.mark.parametrize(
    ("code", "left", "right", "wide", "narrow"),
    [
        (EQ, 1 << 32 | 1, 1, False, True),
        (NE, 1 << 32 | 1, 1, True, False),
        (GT, 1 << 32, 1, True, False),
        (GE, 1, 1, True, True),
        (LT, 1 << 32, 1, False, True),
        (LE, 2, 1, False, False),
        (SET, 1 << 32, 1 << 32, True, False),
        (SGT, MASK64, 0, False, False),
        (SGE, TOP, 0, False, True),
        (SLT, 0xFFFFFFFF, 0, False, True),
        (SLE, MASK64, MASK64, True, True),
    ],
)
def test_comparisons(code: int, left: int, right: int, wide: bool, narrow: bool) -> None:
    """Signed and unsigned, of 64 bits and of 32."""
    for kind, holds in ((0x05, wide), (0x06, narrow)):
        jump = instruction(kind | code | 0x08, 2, 3, 2)
        assert says(number(2, left) + number(3, right) + jump + answer(allow=False) + answer(allow=True)) == holds


def test_an_immediate_is_sign_extended() -> None:
    """In 64-bit operations -1 stands for all ones; a 32-bit operation clears the upper half."""
    assert says(instruction(0xB7, 2, immediate=-1) + equals(2, MASK64))
    assert says(instruction(0xB4, 2, immediate=-1) + equals(2, 0xFFFFFFFF))


@pytest.mark.parametrize("value", [2, 1 << 32, 1 << 32 | 1, MASK64])
def test_an_answer_that_the_kernel_would_not_take_is_none(value: int) -> None:
    """The verifier lets only 0 and 1 through; gpuguard does not guess at others."""
    with pytest.raises(ProgramError):
        says(number(0, value) + instruction(0x95))


BROKEN = {
    "unset answer": instruction(0x95),
    "the stack's address": instruction(0xBF, 0, 10) + instruction(0x95),
    "the context as answer": instruction(0xBF, 0, 1) + instruction(0x95),
    "half an address": instruction(0xBC, 2, 1) + answer(allow=True),
    "an unset register copied": instruction(0xBF, 2, 3) + answer(allow=True),
    "arithmetic with the context": instruction(0x07, 1, immediate=4) + answer(allow=True),
    "arithmetic by the context": instruction(0xB7, 2) + instruction(0x0F, 2, 1) + answer(allow=True),
    "a comparison of the context": instruction(0x15, 1, 0, 0, 0) + answer(allow=True),
    "a comparison by an unset register": instruction(0xB7, 2) + instruction(0x1D, 2, 3) + answer(allow=True),
    "a load by a number": instruction(0xB7, 2) + instruction(0x61, 0, 2, 0) + answer(allow=True),
    "a load by an unset register": instruction(0x61, 0, 2, 0) + answer(allow=True),
    "no exit": instruction(0xB7, 0),
}


@pytest.mark.parametrize("what", BROKEN)
def test_refuses_what_the_verifier_would(what: str) -> None:
    """Values that are no numbers are not reckoned with, and a program must end with exit."""
    with pytest.raises(ProgramError):
        says(BROKEN[what])


def test_a_copy_of_the_context_is_the_context() -> None:
    """Programs may keep the address elsewhere."""
    assert says(instruction(0xBF, 6, 1) + instruction(0x61, 1, 6, 4) + equals(1, 195))


def test_a_loop_ends() -> None:
    """A program that runs for ever is given up."""
    with pytest.raises(ProgramError, match="does not end"):
        says(instruction(0x05, offset=-1))


def test_a_short_loop_is_followed() -> None:
    """Linux 5.3 and later take loops that end: here ten rounds."""
    loop = instruction(0xB7, 2) + instruction(0x07, 2, immediate=1) + instruction(0x55, 2, 0, -2, 10)
    assert says(loop + equals(2, 10))
