"""What the kernel makes of a program where net.core.bpf_jit_harden is set, as root then reads it.

Each number comes in through register 11, as the exclusive or of two others, of which one is drawn anew at each load
(kernel/bpf/core.c, bpf_jit_blind_insn). Seen on Linux 6.18 with the setting at 2.
"""

from __future__ import annotations

import random

from gpuguard.model.device_program import Instruction, Program, decode
from tests.lab.device_programs import ALU32, ALU64, EXIT, JA, JMP, JMP32, LDDW, MOV, REG, instruction

_HIDDEN = 11
_XOR, _LSH, _RSH, _ARSH, _NEG, _OR = 0xA0, 0x60, 0x70, 0xC0, 0x80, 0x40


def blinded(code: bytes, choose: random.Random) -> bytes:
    """Return the same program with every number in disguise."""
    program = decode(code)
    pieces = [_piece(program, at, choose) for at in range(len(program))]
    places = [0]
    for piece in pieces:
        places.append(places[-1] + len(piece) // 8)
    return b"".join(
        _aimed(piece, places[at + 1], places[at + 1 + program[at].offset]) if _jumps(program[at]) else piece
        for at, piece in enumerate(pieces)
    )


def _piece(program: Program, at: int, choose: random.Random) -> bytes:
    step = program[at]
    kind, code = step.opcode & 0x07, step.opcode & 0xF0
    plain = instruction(step.opcode, step.dst, step.src, step.offset, step.immediate)
    if at and program[at - 1].opcode == LDDW:
        first = program[at - 1]
        return _hide(ALU32, first.immediate, choose) + instruction(ALU64 | _OR | REG, first.dst, _HIDDEN)
    if step.opcode == LDDW:
        high = program[at + 1].immediate
        shift = instruction(ALU64 | _LSH, _HIDDEN, immediate=32)
        return _hide(ALU64, high, choose) + shift + instruction(ALU64 | MOV | REG, step.dst, _HIDDEN)
    if kind not in {ALU32, ALU64, JMP, JMP32} or step.opcode & REG or step.opcode == EXIT:
        return plain
    if (kind == JMP and code == JA) or (kind in {ALU32, ALU64} and code in {_LSH, _RSH, _ARSH, _NEG}):
        return plain
    if code == MOV and kind in {ALU32, ALU64} and not step.immediate:
        return instruction(ALU64 | _XOR | REG, step.dst, step.dst)
    wide = ALU64 if kind in {ALU64, JMP} else ALU32
    return _hide(wide, step.immediate, choose) + instruction(step.opcode | REG, step.dst, _HIDDEN, step.offset)


def _hide(kind: int, number: int, choose: random.Random) -> bytes:
    key = choose.getrandbits(32)
    return instruction(kind | MOV, _HIDDEN, immediate=number ^ key) + instruction(kind | _XOR, _HIDDEN, immediate=key)


def _jumps(step: Instruction) -> bool:
    return step.opcode & 0x07 in {JMP, JMP32} and step.opcode != EXIT


def _aimed(piece: bytes, behind: int, target: int) -> bytes:
    """Return a piece that ends in a jump, with the jump's way to its target."""
    jump = decode(piece[-8:])[0]
    return piece[:-8] + instruction(jump.opcode, jump.dst, jump.src, target - behind, jump.immediate)
