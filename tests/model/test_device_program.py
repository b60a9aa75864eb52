"""Instructions: reading what the kernel hands out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ProgramError
from gpuguard.model.device_program import MAX_INSTRUCTIONS, Instruction, decode
from tests.lab.device_programs import instruction

BYTES = st.integers(0, 255)
NIBBLES = st.integers(0, 15)
OFFSETS = st.integers(-(1 << 15), (1 << 15) - 1)
IMMEDIATES = st.integers(-(1 << 31), (1 << 31) - 1)
INSTRUCTIONS = st.builds(Instruction, BYTES, NIBBLES, NIBBLES, OFFSETS, IMMEDIATES)


@given(st.lists(INSTRUCTIONS, min_size=1, max_size=20))
def test_reads_every_field(program: list[Instruction]) -> None:
    """Whatever an instruction's fields are, they are read as they were written."""
    assert decode(b"".join(instruction(*one) for one in program)) == tuple(program)


def test_numbers_are_little_endian_and_signed() -> None:
    """A jump may go back, and an immediate may be negative."""
    assert decode(bytes.fromhex("5532fdff feffffff")) == (Instruction(0x55, 2, 3, -3, -2),)


@pytest.mark.parametrize("size", [0, 1, 7, 9, 8 * MAX_INSTRUCTIONS + 8])
def test_refuses_what_is_no_program(size: int) -> None:
    """Nothing, half an instruction and an endless program are not read in part."""
    with pytest.raises(ProgramError):
        decode(bytes(size))
