"""Ask a device program about one access, as the kernel does."""

from __future__ import annotations

from typing import Final, Union

from gpuguard.errors import ProgramError
from gpuguard.model.arithmetic import MASK64
from gpuguard.model.device_program import Program
from gpuguard.model.rule import Access
from gpuguard.model.steps import (
    ACCESS_SHIFT,
    KINDS,
    REGISTERS,
    Arithmetic,
    Branch,
    Exit,
    Jump,
    Load,
    Move,
    Step,
    steps,
    verdict,
)

# More than a program can take that never jumps back.
MAX_STEPS = 1 << 16


class _Context:
    """The address of the context: may be read through and copied."""


_CONTEXT: Final = _Context()
_Value = Union[int, _Context, None]
_Fields = tuple[int, int, int]


def permits(program: Program, kind: str, major: int, minor: int, access: Access) -> bool:
    """Whether the program allows this access to this device ("c" or "b"). Raises ProgramError, never guesses."""
    return answer(steps(program), kind, major, minor, access)[0]


def answer(code: tuple[Step, ...], kind: str, major: int, minor: int, access: Access) -> tuple[bool, int]:
    """Return what permits() says of a program's steps, and how many were taken for it. Raises ProgramError."""
    fields = (KINDS[kind] | access << ACCESS_SHIFT, major, minor)
    registers: list[_Value] = [None] * REGISTERS
    registers[1] = _CONTEXT
    at = 0
    for taken in range(MAX_STEPS):
        if at >= len(code):
            raise ProgramError("falls off its end")
        step = code[at]
        at += 1
        if isinstance(step, Branch):
            right = step.number if step.src is None else _number(registers[step.src])
            if step.function(_number(registers[step.dst]), right):
                at = step.target
        elif isinstance(step, Jump):
            at = step.target
        elif isinstance(step, Exit):
            return verdict(_number(registers[0])), taken + 1
        else:
            _work(step, registers, fields)
    raise ProgramError(f"does not end within {MAX_STEPS} steps")


def _work(step: Step, registers: list[_Value], fields: _Fields) -> None:
    """Take a step that changes a register and nothing else."""
    if isinstance(step, Load):
        if registers[step.base] is not _CONTEXT:
            raise ProgramError("reads something else than its context")
        registers[step.dst] = (fields[step.field] >> step.shift) & step.mask
    elif isinstance(step, Move):
        value = step.number if step.src is None else registers[step.src]
        whole_address = step.mask == MASK64 and value is _CONTEXT
        registers[step.dst] = value if whole_address else _number(value) & step.mask
    elif isinstance(step, Arithmetic):
        right = step.number if step.src is None else _number(registers[step.src])
        registers[step.dst] = step.function(_number(registers[step.dst]), right)


def _number(value: _Value) -> int:
    if not isinstance(value, int):
        raise ProgramError("takes an unset register or an address for a number")
    return value
