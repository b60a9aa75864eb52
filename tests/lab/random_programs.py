"""Device programs made of chance, which the kernel's verifier takes: no runtime writes such, and they find errors."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.lab.device_programs import (
    ALU32,
    ALU64,
    AND,
    EXIT,
    JMP,
    JMP32,
    LDXH,
    LDXW,
    MOV,
    REG,
    RSH,
    answer,
    instruction,
    length,
    number,
)

_CONTEXT = 1
_WORDS = (2, 3)  # registers for what comes of type and access
_MAJOR, _MINOR = 4, 5
_SPARE = (6, 7, 8)
_LDXB = 0x71
_NEG = 0x80
_OPERATIONS = (0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, _NEG, 0x90, 0xA0, 0xB0, 0xC0)
_SHIFTS = (0x60, 0x70, 0xC0)
_COMPARISONS = (0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0)
_EQUALITY = (0x10, 0x50)
_NUMBERS = (0, 1, 2, 3, 4, 5, 6, 7, 16, 31, 0xFFFF, 0x10001, 0x20002, -1, -2, -(1 << 31), (1 << 31) - 1)


def random_program(
    choose: random.Random, size: int = 12, *, plain: bool = False, numbers: Sequence[int] = range(4)
) -> bytes:
    """Return a program of some `size` instructions between its start and its end.

    It compares major and minor with these `numbers`. `plain`: only for equality, and it does no arithmetic
    with them, as programs do that gpuguard can put into rules.
    """
    return _Maker(choose, plain=plain, numbers=numbers).program(size)


def random_sums(choose: random.Random) -> bytes:
    """Return a program that reckons with its context and with large numbers; one bit of the last sum is its answer."""
    maker = _Maker(choose, plain=False, numbers=())
    values = [choose.choice([choose.choice(_NUMBERS), choose.getrandbits(32), choose.getrandbits(64)]) for _ in _SPARE]
    start = b"".join(number(register, value) for register, value in zip(_SPARE, values))
    sums = b"".join(maker.arithmetic() for _ in range(choose.randint(1, 4)))
    last = sums[-7] & 0xF  # the register that the last one changes
    answer_bit = (
        instruction(ALU64 | MOV | REG, 0, last)
        + instruction(ALU64 | RSH, 0, immediate=choose.choice([0, 1, 7, 30, 31, 32, 62, 63]))
        + instruction(ALU64 | AND, 0, immediate=1)
        + instruction(EXIT)
    )
    return start + maker.fields() + sums + answer_bit


class _Maker:
    def __init__(self, choose: random.Random, *, plain: bool, numbers: Sequence[int]) -> None:
        self._choose = choose
        self._plain = plain
        self._numbers = numbers

    def program(self, size: int) -> bytes:
        choose = self._choose
        code = answer(choose.random() < 0.5)  # what ends it when nothing has
        for _ in range(choose.randint(1, size)):
            code = self._one(length(code)) + code
        spares = b"".join(instruction(ALU64 | MOV, one, immediate=self._number()) for one in _SPARE)
        unsaid = instruction(ALU64 | MOV, 0, immediate=choose.randint(0, 1))  # for a jump into the middle of an answer
        return spares + unsaid + self.fields() + code

    def fields(self) -> bytes:
        """Return what puts the context into registers."""
        words = b"".join(self._load_word(register) for register in _WORDS)
        return words + instruction(LDXW, _MAJOR, _CONTEXT, 4) + instruction(LDXW, _MINOR, _CONTEXT, 8)

    def _one(self, rest: int) -> bytes:
        """Return something to put before `rest` instructions."""
        kind = self._choose.choice(["branch", "branch", "numbers", "numbers", "arithmetic", "word", "end"])
        offset = self._choose.randint(0, rest - 2)
        if kind == "branch":
            return self._branch(offset, self._any(), _COMPARISONS, self._number())
        if kind == "numbers":
            comparisons = _EQUALITY if self._plain else _COMPARISONS
            wide = self._choose.choice([JMP, JMP32])
            register = self._choose.choice([_MAJOR, _MINOR])
            opcode = wide | self._choose.choice(comparisons)
            return instruction(opcode, register, 0, offset, self._choose.choice(self._numbers))
        if kind == "arithmetic":
            return self.arithmetic()
        if kind == "word":
            return self._load_word(self._choose.choice(_WORDS))
        return self._branch(2, self._any(), _COMPARISONS, self._number()) + answer(self._choose.choice([True, False]))

    def _any(self) -> int:
        """Return a register to read or to change."""
        return self._choose.choice((*_WORDS, *_SPARE) if self._plain else (*_WORDS, *_SPARE, _MAJOR, _MINOR))

    def _number(self) -> int:
        return self._choose.choice(_NUMBERS)

    def _branch(self, offset: int, register: int, comparisons: tuple[int, ...], immediate: int) -> bytes:
        opcode = self._choose.choice([JMP, JMP32]) | self._choose.choice(comparisons)
        if self._choose.choice([True, False]):
            return instruction(opcode | REG, register, self._any(), offset)
        return instruction(opcode, register, 0, offset, immediate)

    def arithmetic(self) -> bytes:
        """Return one operation."""
        wide = self._choose.choice([ALU32, ALU64])
        operation = self._choose.choice(_OPERATIONS)
        register = self._any()
        if operation == _NEG:
            return instruction(wide | operation, register)
        if self._choose.choice([True, False]):
            return instruction(wide | operation | REG, register, self._any())
        immediate = self._number()
        if operation in _SHIFTS:
            immediate &= 31
        if operation in {0x30, 0x90} and immediate == 0:  # the verifier refuses a division by a number that is zero
            immediate = 1
        return instruction(wide | operation, register, immediate=immediate)

    def _load_word(self, register: int) -> bytes:
        opcode, offset = self._choose.choice([(LDXW, 0), (LDXH, 0), (LDXH, 2), (_LDXB, 0), (_LDXB, 2)])
        return instruction(opcode, register, _CONTEXT, offset)
