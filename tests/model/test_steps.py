"""What gpuguard follows of BPF, and what it refuses."""

from __future__ import annotations

import pytest

from gpuguard.errors import ProgramError
from gpuguard.model.accepted import accepted
from gpuguard.model.device_program import decode
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access
from tests.lab.device_programs import answer, instruction, number

ALLOW = answer(allow=True)

REFUSED = {
    "call of a helper": instruction(0x85, immediate=1),
    "call of a function": instruction(0x85, src=1, immediate=0),
    "store to the stack": instruction(0x7B, 10, 1, -8),
    "store of a number": instruction(0x62, 10, 0, -4, 7),
    "speculation barrier": instruction(0xC0),
    "atomic addition": instruction(0xDB, 10, 1, -8, 0),
    "sign-extending load": instruction(0x81, 0, 1, 0),
    "load of a double word": instruction(0x79, 0, 1, 0),
    "load of half a major": instruction(0x69, 0, 1, 4),
    "load of a byte of the minor": instruction(0x71, 0, 1, 8),
    "load behind the context": instruction(0x61, 0, 1, 12),
    "load before the context": instruction(0x61, 0, 1, -4),
    "load across fields": instruction(0x61, 0, 1, 2),
    "load with a number": instruction(0x61, 0, 1, 0, 1),
    "packet access": instruction(0x20, immediate=0),
    "byte swap": instruction(0xD4, 2, 0, 0, 16),
    "new byte swap": instruction(0xD7, 2, 0, 0, 16),
    "sign-extending move": instruction(0xBF, 0, 1, 8),
    "signed division": instruction(0x37, 0, 0, 1, 2),
    "unknown arithmetic": instruction(0xE7, 0),
    "negation by a register": instruction(0x8F, 0, 1),
    "negation by a number": instruction(0x87, 0, 0, 0, 1),
    "number and register": instruction(0x0F, 0, 1, 0, 1),
    "register for a number": instruction(0x07, 0, 1, 0, 1),
    "jump by number and register": instruction(0x1D, 1, 1, 0, 1),
    "unknown jump": instruction(0xE5),
    "long jump": instruction(0x06, immediate=0),
    "jump with a number": instruction(0x05, immediate=1),
    "exit with a number": instruction(0x95, immediate=1),
    "32-bit exit": instruction(0x96),
    "jump before the start": instruction(0x05, offset=-5),
    "jump behind the end": instruction(0x05, offset=2),
    "register 12": instruction(0xBF, 12, 1),
    "source register 12": instruction(0xBF, 0, 12),
    "address of a map": instruction(0x18, 0, 1) + instruction(0),
    "half a number of two slots": instruction(0x18, 0) + instruction(0xB7, 0),
    "jump into a number of two slots": instruction(0x05, offset=1) + number(0, 1),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refuses_what_it_does_not_know(what: str) -> None:
    """One such instruction, also where no path leads, and nothing is said of the program."""
    for program in (decode(REFUSED[what] + ALLOW), decode(ALLOW + REFUSED[what] + ALLOW)):
        with pytest.raises(ProgramError):
            permits(program, "c", 1, 3, Access.READ)
        with pytest.raises(ProgramError):
            accepted(program)


def test_refuses_a_number_without_its_second_half() -> None:
    """A program that ends within an instruction is refused."""
    with pytest.raises(ProgramError):
        accepted(decode(ALLOW + instruction(0x18, 0)))


def test_says_where() -> None:
    """The message names the instruction."""
    with pytest.raises(ProgramError, match="instruction 2 \\(0x85\\)"):
        accepted(decode(ALLOW + REFUSED["call of a helper"]))


def test_takes_the_verifier_s_zero_extension() -> None:
    """The verifier adds moves of a register to itself, with a number of 1, on some processors."""
    assert accepted(decode(instruction(0xB4, 0, 0, 0, 1) + instruction(0xBC, 0, 0, 0, 1) + ALLOW)).unrestricted
