"""Which registers of a device program will still be read."""

from __future__ import annotations

from gpuguard.errors import ProgramError
from gpuguard.model.steps import Arithmetic, Branch, Exit, Jump, Load, Move, Step


def live_registers(code: tuple[Step, ...]) -> list[tuple[int, ...]]:
    """Return for each step the registers that some path from there reads before it sets them.

    Raises ProgramError for a program that jumps back: without loops one look at each step is enough.
    """
    live: list[frozenset[int]] = [frozenset()] * (len(code) + 1)
    for at in range(len(code) - 1, -1, -1):
        step = code[at]
        after = live[at + 1]
        if isinstance(step, (Branch, Jump)):
            if step.target <= at:
                raise ProgramError(f"instruction {at}: jumps back")
            after = live[step.target] | after if isinstance(step, Branch) else live[step.target]
        live[at] = (after - _sets(step)) | _reads(step)
    return [tuple(sorted(registers)) for registers in live]


def _sets(step: Step) -> frozenset[int]:
    return frozenset([step.dst]) if isinstance(step, (Load, Move, Arithmetic)) else frozenset()


def _reads(step: Step) -> frozenset[int]:
    if isinstance(step, Load):
        return frozenset([step.base])
    if isinstance(step, Exit):
        return frozenset([0])
    read = set()
    if isinstance(step, (Move, Arithmetic, Branch)) and step.src is not None:
        read.add(step.src)
    if isinstance(step, (Arithmetic, Branch)):
        read.add(step.dst)
    return frozenset(read)
