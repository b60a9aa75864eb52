"""The instructions that gpuguard can follow, checked once and put into a form that is quick to run.

Whatever is not known here is refused, never guessed: calls, the stack, stores, atomics, byte swaps, sign extensions,
and whatever the kernel adds. Opcodes: linux/bpf.h and linux/bpf_common.h.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple, Optional, Union

from gpuguard.errors import ProgramError
from gpuguard.model.arithmetic import JEQ, JNE, MASK32, MASK64, MOV, NEG, XOR, Compare, Operate, arithmetic, comparison
from gpuguard.model.device_program import Instruction, Program

# The last one is the kernel's own: where net.core.bpf_jit_harden is set, it brings each number in through it, disguised
# (kernel/bpf/core.c, bpf_jit_blind_insn).
REGISTERS = 12

# struct bpf_cgroup_dev_ctx: what a program is asked about.
ACCESS_TYPE, MAJOR, MINOR = range(3)
_FIELD = 4
# BPF_DEVCG_DEV_*: the low half of the first word; the access is the high half.
KINDS = {"b": 1, "c": 2}
ACCESS_SHIFT = 16


class Load(NamedTuple):
    """Read a field of the context, or for the first one a part of it."""

    dst: int
    base: int
    field: int
    shift: int
    mask: int


class Move(NamedTuple):
    """Copy a register (src) or a number."""

    dst: int
    src: Optional[int]
    number: int
    mask: int


class Arithmetic(NamedTuple):
    """Change a register by a register (src) or a number."""

    dst: int
    src: Optional[int]
    number: int
    function: Operate


class Branch(NamedTuple):
    """Jump if a register compares to a register (src) or a number; `equal` is set for == (True) and != (False)."""

    dst: int
    src: Optional[int]
    number: int
    function: Compare
    mask: int
    equal: Optional[bool]
    target: int


class Jump(NamedTuple):
    """Jump always."""

    target: int


class Exit(NamedTuple):
    """End with the answer in r0: 1 allows and 0 denies; the kernel's verifier lets nothing else through."""


class Rest(NamedTuple):
    """The second half of an instruction of two slots; does nothing, and nothing jumps there."""


Step = Union[Load, Move, Arithmetic, Branch, Jump, Exit, Rest]


def verdict(number: int) -> bool:
    """Return what a program's answer means. Raises ProgramError."""
    if number not in {0, 1}:
        raise ProgramError(f"answers {number}: want 0 or 1")
    return bool(number)


# One program is asked, or followed, at a time. The longest that is read takes 6 MB.
@lru_cache(maxsize=4)
def steps(program: Program) -> tuple[Step, ...]:
    """Return one step for each instruction. Raises ProgramError at the first that cannot be followed."""
    found: list[Step] = []
    for at, instruction in enumerate(program):
        try:
            step = _step(program, at, instruction) if len(found) == at else None
        except ProgramError as error:
            raise ProgramError(f"instruction {at} ({instruction.opcode:#04x}): {error}") from None
        if step is not None:
            found.append(step)
            if instruction.opcode == _LDDW:
                found.append(Rest())
    for step in found:
        if isinstance(step, (Branch, Jump)) and isinstance(found[step.target], Rest):
            raise ProgramError(f"instruction {step.target}: something jumps into its second half")
    return tuple(found)


_ALU32, _ALU64, _JMP, _JMP32 = 0x04, 0x07, 0x05, 0x06
_CLASS, _CODE, _FROM_REGISTER = 0x07, 0xF0, 0x08
_JA, _EXIT, _LDDW = 0x00, 0x90, 0x18
_LOADS = {0x61: 4, 0x69: 2, 0x71: 1}  # BPF_LDX | BPF_MEM, and their sizes


def _step(program: Program, at: int, instruction: Instruction) -> Step:
    opcode, dst, src, _, _ = instruction
    if dst >= REGISTERS or src >= REGISTERS:
        raise ProgramError("no such register")
    if opcode == _LDDW:
        return _wide_constant(program, at, instruction)
    kind = opcode & _CLASS
    if opcode in _LOADS:
        return _load(instruction, _LOADS[opcode])
    if kind in {_ALU32, _ALU64}:
        return _arithmetic(instruction, MASK64 if kind == _ALU64 else MASK32)
    if kind in {_JMP, _JMP32}:
        return _jump(at, len(program), instruction, MASK64 if kind == _JMP else MASK32)
    raise ProgramError("unknown to gpuguard")


def _wide_constant(program: Program, at: int, instruction: Instruction) -> Step:
    if instruction.src or instruction.offset:
        raise ProgramError("the address of a map or of other kernel data")
    if at + 1 == len(program):
        raise ProgramError("its second half is missing")
    second = program[at + 1]
    if (second.opcode, second.dst, second.src, second.offset) != (0, 0, 0, 0):
        raise ProgramError("its second half is not one")
    number = (instruction.immediate & MASK32) | (second.immediate & MASK32) << 32
    return Move(instruction.dst, None, number, MASK64)


def _load(instruction: Instruction, size: int) -> Step:
    # kernel/bpf/cgroup.c, cgroup_dev_is_valid_access: parts are allowed of the first field only.
    _, dst, src, offset, immediate = instruction
    field, inside = divmod(offset, _FIELD)
    whole = size == _FIELD and field in {MAJOR, MINOR}
    if immediate or offset % size or not (whole or field == ACCESS_TYPE):
        raise ProgramError(f"a load of {size} bytes at {offset}, where the context has no such field")
    return Load(dst, src, field, 8 * inside, (1 << 8 * size) - 1)


def _arithmetic(instruction: Instruction, mask: int) -> Step:
    opcode, dst, src, offset, immediate = instruction
    code = opcode & _CODE
    # The verifier marks a zero extension of its own with an immediate of 1: mov32 of a register to itself.
    extension = code == MOV and mask == MASK32 and dst == src and immediate == 1
    operand = None if code == NEG else _operand(instruction, extension=extension)
    if offset:
        raise ProgramError("a signed division or a sign extension")
    if code == MOV:
        return Move(dst, operand, immediate & mask, mask)
    if code == XOR and operand == dst:  # also of a register that is not set
        return Move(dst, None, 0, mask)
    function = arithmetic(code, mask)
    if function is None or (code == NEG and (opcode & _FROM_REGISTER or src or immediate)):
        raise ProgramError("unknown arithmetic")
    return Arithmetic(dst, operand, immediate & mask, function)


def _jump(at: int, length: int, instruction: Instruction, mask: int) -> Step:
    opcode, dst, src, offset, immediate = instruction
    code = opcode & _CODE
    if opcode == _EXIT | _JMP:
        if dst or src or offset or immediate:
            raise ProgramError("not the exit that the kernel knows")
        return Exit()
    target = at + 1 + offset
    if not 0 <= target < length:
        raise ProgramError("jumps out of the program")
    if opcode == _JA | _JMP:
        if dst or src or immediate:
            raise ProgramError("not the jump that the kernel knows")
        return Jump(target)
    function = comparison(code, mask)
    if function is None:
        raise ProgramError("a call, or an unknown jump")
    equal = {JEQ: True, JNE: False}.get(code)
    return Branch(dst, _operand(instruction), immediate & mask, function, mask, equal, target)


def _operand(instruction: Instruction, *, extension: bool = False) -> Optional[int]:
    if instruction.opcode & _FROM_REGISTER:
        if instruction.immediate and not extension:
            raise ProgramError("a register and a number at once")
        return instruction.src
    if instruction.src:
        raise ProgramError("a register and a number at once")
    return None
