"""Instructions of a cgroup device program (BPF_PROG_TYPE_CGROUP_DEVICE), as the kernel hands them out."""

from __future__ import annotations

import struct
from typing import NamedTuple

from gpuguard.errors import ProgramError

# struct bpf_insn in linux/bpf.h: opcode, two registers of four bits, offset, immediate. Bytes and registers are in the
# host's order; every host with GPUs is little-endian.
_INSTRUCTION = struct.Struct("<BBhi")

# The kernel takes a million, a device program of 300 rules has about 2,000.
MAX_INSTRUCTIONS = 1 << 16


class Instruction(NamedTuple):
    """One slot of a program: an instruction, or half of one that takes two."""

    opcode: int
    dst: int
    src: int
    offset: int
    immediate: int


Program = tuple[Instruction, ...]


def decode(code: bytes) -> Program:
    """Read instructions as BPF_OBJ_GET_INFO_BY_FD returns them. Raises ProgramError."""
    if not code or len(code) % _INSTRUCTION.size:
        raise ProgramError(f"device program of {len(code)} bytes: want whole instructions of {_INSTRUCTION.size}")
    if len(code) > MAX_INSTRUCTIONS * _INSTRUCTION.size:
        raise ProgramError(f"device program of {len(code)} bytes: more than {MAX_INSTRUCTIONS} instructions")
    return tuple(
        Instruction(opcode, registers & 0xF, registers >> 4, offset, immediate)
        for opcode, registers, offset, immediate in _INSTRUCTION.iter_unpack(code)
    )
