"""Programs that answer with one bit of an operation's result, or with a comparison's: each of BPF's, at its edges.

A question's minor says which: its low 6 bits the bit of the result, the others which of VALUES is on the right.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.kernel.asker import Question
from tests.lab.device_programs import (
    ALU32,
    ALU64,
    AND,
    EXIT,
    JEQ,
    JMP,
    JMP32,
    LDXW,
    MOV,
    REG,
    RSH,
    answer,
    instruction,
    number,
)

NEG = 0x80
OPERATIONS = (0x00, 0x10, 0x20, 0x30, 0x40, AND, 0x60, RSH, NEG, 0x90, 0xA0, MOV, 0xC0)
COMPARISONS = (JEQ, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xA0, 0xB0, 0xC0, 0xD0)
_TOP31, _TOP63 = 1 << 31, 1 << 63
VALUES = (
    *(0, 1, 2, 3, 31, 32, 63, 64),
    *(_TOP31 - 1, _TOP31, _TOP31 | 1, (1 << 32) - 1, 1 << 32, 7 << 32 | 7),
    *(_TOP63 - 1, _TOP63, _TOP63 | 1, (1 << 64) - 2, (1 << 64) - 1),
)
_BITS = (0, 1, 2, 7, 30, 31, 32, 33, 62, 63)
_CONTEXT, _MINOR, _LEFT, _RIGHT, _WHICH = 1, 5, 6, 7, 8


def programs(kind: str, major: int) -> Iterator[tuple[str, bytes, list[Question]]]:
    """Go through the programs, each with a name and with all questions about it: to make nodes of this major."""
    for left in VALUES:
        for wide in (ALU32, ALU64):
            for operation in OPERATIONS:
                code = _operands(left) + _operation(wide | operation) + _bit()
                yield f"{wide | operation:#04x} of {left:#x}", code, _questions(kind, major, _BITS)
        for wide in (JMP32, JMP):
            for comparison in COMPARISONS:
                jump = instruction(wide | comparison | REG, _LEFT, _RIGHT, 2)
                code = _operands(left) + jump + answer(allow=False) + answer(allow=True)
                yield f"{wide | comparison:#04x} of {left:#x}", code, _questions(kind, major, (0,))


def _questions(kind: str, major: int, bits: tuple[int, ...]) -> list[Question]:
    return [(kind, major, which << 6 | bit, 1) for which in range(len(VALUES)) for bit in bits]


def _operands(left: int) -> bytes:
    """Return what sets both sides, the right one by the question."""
    which = instruction(ALU64 | MOV | REG, _WHICH, _MINOR) + instruction(ALU64 | RSH, _WHICH, immediate=6)
    choices = b"".join(
        instruction(JMP | 0x50, _WHICH, 0, 2, index) + number(_RIGHT, value) for index, value in enumerate(VALUES)
    )
    fields = instruction(LDXW, _MINOR, _CONTEXT, 8)
    return fields + which + number(_LEFT, left) + number(_RIGHT, 0) + choices


def _operation(opcode: int) -> bytes:
    if opcode & 0xF0 == NEG:
        return instruction(opcode, _LEFT)
    return instruction(opcode | REG, _LEFT, _RIGHT)


def _bit() -> bytes:
    return (
        instruction(ALU64 | AND, _MINOR, immediate=63)
        + instruction(ALU64 | MOV | REG, 0, _LEFT)
        + instruction(ALU64 | RSH | REG, 0, _MINOR)
        + instruction(ALU64 | AND, 0, immediate=1)
        + instruction(EXIT)
    )
