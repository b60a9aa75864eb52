"""Follow a device program down all its paths at once: which accesses it allows, and which it denies.

The word with type and access is taken as fourteen numbers side by side, one for each question (lanes.py). Major and
minor stay open: they may only be compared for equality with a number, which leaves "exactly N" on one side and "not N"
on the other. Paths that meet at one instruction and differ only in what nobody reads any more become one. Programs that
jump back are refused: no runtime makes them.
"""

from __future__ import annotations

import enum
import operator
from collections import defaultdict
from typing import NamedTuple, Optional, Union

from gpuguard.errors import ProgramError
from gpuguard.model.arithmetic import MASK64, Compare, Operate
from gpuguard.model.device_program import Program
from gpuguard.model.lanes import ALL_LANES, WORDS
from gpuguard.model.liveness import live_registers
from gpuguard.model.rule import MAX_MAJOR, MAX_MINOR
from gpuguard.model.steps import (
    ACCESS_TYPE,
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

# About two seconds. Programs of 300 rules with as many different majors take 230,000; with as many prefixes, 500,000.
MAX_STEPS = 1 << 20

Among = Union[int, frozenset[int]]
"""What is known of a number: exactly this one, or any but these."""
Where = tuple[Among, Among]
"""What is known of major and minor."""


class Region(NamedTuple):
    """Questions (lanes) about some devices, to all of which the program gives the same answer."""

    lanes: int
    major: Among
    minor: Among


class Answers(NamedTuple):
    """What a program says: each question about each device is in exactly one region."""

    allowed: list[Region]
    denied: list[Region]


def follow(program: Program) -> Answers:
    """Return the program's answer to every question. Raises ProgramError when they cannot be told exactly."""
    return _Walk(steps(program)).run()


class _Symbol(enum.Enum):
    MAJOR = 0
    MINOR = 1
    CONTEXT = 2


class _Lanes:
    """A number for each lane. Compared by identity: _Walk keeps one of each."""

    def __init__(self, numbers: tuple[int, ...]) -> None:
        self.numbers = numbers


_Number = Union[int, _Lanes]
_Value = Union[_Number, _Symbol, None]
_Registers = list[_Value]
_LIMITS = (MAX_MAJOR, MAX_MINOR)


class _Walk:
    def __init__(self, code: tuple[Step, ...]) -> None:
        self._code = code
        self._live = live_registers(code)
        self._meetings = {step.target for step in code if isinstance(step, (Branch, Jump))}
        self._pending: defaultdict[int, dict[tuple[tuple[_Value, ...], Where], int]] = defaultdict(dict)
        self._steps = 0
        self._kept: dict[tuple[int, ...], _Lanes] = {}
        self._worked: dict[tuple[Operate, _Number, _Number], _Number] = {}
        self._compared: dict[tuple[Compare, _Number, _Number], int] = {}
        self._answers = Answers([], [])

    def run(self) -> Answers:
        registers: _Registers = [None] * REGISTERS
        registers[1] = _Symbol.CONTEXT
        self._path(0, registers, (frozenset(), frozenset()), ALL_LANES)
        for at in range(len(self._code)):
            for (values, where), lanes in self._pending.pop(at, {}).items():
                registers = [None] * REGISTERS
                for register, value in zip(self._live[at], values):
                    registers[register] = value
                self._path(at, registers, where, lanes)
        return self._answers

    def _meet(self, at: int, registers: _Registers, where: Where, lanes: int) -> None:
        """Let a path wait at an instruction for others that come to the same."""
        if not lanes:
            return
        key = (tuple([registers[register] for register in self._live[at]]), where)
        waiting = self._pending[at]
        waiting[key] = waiting.get(key, 0) | lanes

    def _path(self, at: int, registers: _Registers, where: Where, lanes: int) -> None:
        """Follow one path to its end, or to where others may meet it."""
        start = at
        while True:
            self._spend(1)
            if at >= len(self._code):
                raise ProgramError("falls off its end")
            if at in self._meetings and at != start:
                self._meet(at, registers, where, lanes)
                return
            step = self._code[at]
            at += 1
            if isinstance(step, Branch):
                on = self._branch(step, registers, where, lanes)
                if on is None:
                    return
                where, lanes = on
            elif isinstance(step, Jump):
                self._meet(step.target, registers, where, lanes)
                return
            elif isinstance(step, Exit):
                self._exit(registers[0], where, lanes)
                return
            else:
                self._work(step, registers)

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise ProgramError(f"has too many paths: more than {MAX_STEPS} steps")

    def _branch(self, step: Branch, registers: _Registers, where: Where, lanes: int) -> Optional[tuple[Where, int]]:
        """Send the paths that jump on their way, and return the one that does not."""
        left = registers[step.dst]
        right = step.number if step.src is None else registers[step.src]
        if isinstance(right, _Symbol):
            left, right = right, left
        if isinstance(left, _Symbol):
            if left is _Symbol.CONTEXT or step.equal is None or not isinstance(right, int):
                raise ProgramError("compares a major, a minor or an address otherwise than with a number, for equality")
            among = where[left.value]
            if not isinstance(among, int):
                self._spend(len(among) >> 4)  # it may be copied
            hit, miss = _split(where, left.value, right & step.mask)
            jumps, stays = (hit, miss) if step.equal else (miss, hit)
            if jumps is not None:
                self._meet(step.target, registers, jumps, lanes)
            return None if stays is None else (stays, lanes)
        jumping = lanes & self._compare(step.function, _number(left), _number(right))
        self._meet(step.target, registers, where, jumping)
        return (where, lanes & ~jumping) if lanes & ~jumping else None

    def _work(self, step: Step, registers: _Registers) -> None:
        """Take a step that changes a register and nothing else."""
        if isinstance(step, Load):
            if registers[step.base] is not _Symbol.CONTEXT:
                raise ProgramError("reads something else than its context")
            if step.field == ACCESS_TYPE:
                registers[step.dst] = self._keep(tuple((word >> step.shift) & step.mask for word in WORDS))
            else:
                registers[step.dst] = _Symbol(step.field - 1)
        elif isinstance(step, Move):
            value = step.number if step.src is None else registers[step.src]
            if step.mask != MASK64 and not isinstance(value, _Symbol):
                value = self._operate(operator.and_, _number(value), step.mask)
            if value is None or (step.mask != MASK64 and value is _Symbol.CONTEXT):
                raise ProgramError("copies an unset register, or half an address")
            registers[step.dst] = value
        elif isinstance(step, Arithmetic):
            right = step.number if step.src is None else _number(registers[step.src])
            registers[step.dst] = self._operate(step.function, _number(registers[step.dst]), right)

    def _exit(self, value: _Value, where: Where, lanes: int) -> None:
        number = _number(value)
        for lane, answer in enumerate(_spread(number)):
            if lanes >> lane & 1:
                verdict(answer)
        yes = lanes & self._compare(operator.eq, number, 1)
        if yes:
            self._answers.allowed.append(Region(yes, *where))
        if lanes & ~yes:
            self._answers.denied.append(Region(lanes & ~yes, *where))

    def _operate(self, function: Operate, left: _Number, right: _Number) -> _Number:
        if isinstance(left, int) and isinstance(right, int):
            return function(left, right)
        key = (function, left, right)
        found = self._worked.get(key)
        if found is None:
            found = self._keep(tuple(map(function, _spread(left), _spread(right))))
            self._worked[key] = found
        return found

    def _compare(self, function: Compare, left: _Number, right: _Number) -> int:
        """Return the lanes in which the comparison holds."""
        if isinstance(left, int) and isinstance(right, int):
            return ALL_LANES if function(left, right) else 0
        key = (function, left, right)
        found = self._compared.get(key)
        if found is None:
            held = map(function, _spread(left), _spread(right))
            found = sum(1 << lane for lane, holds in enumerate(held) if holds)
            self._compared[key] = found
        return found

    def _keep(self, numbers: tuple[int, ...]) -> _Lanes:
        return self._kept.setdefault(numbers, _Lanes(numbers))


def _spread(number: _Number) -> tuple[int, ...]:
    return (number,) * len(WORDS) if isinstance(number, int) else number.numbers


def _number(value: _Value) -> _Number:
    if value is None or isinstance(value, _Symbol):
        raise ProgramError("takes an unset register, an address, a major or a minor for a number to reckon with")
    return value


def _split(where: Where, index: int, number: int) -> tuple[Optional[Where], Optional[Where]]:
    """Return what is known if major (0) or minor (1) is the number, and if it is not; None for what cannot be."""
    among = where[index]
    if isinstance(among, int):
        return (where, None) if among == number else (None, where)
    if number > _LIMITS[index] or number in among:
        return None, where
    hit, miss = number, among | {number}
    return ((hit, where[1]), (miss, where[1])) if index == 0 else ((where[0], hit), (where[0], miss))
