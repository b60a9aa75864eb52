"""Which datagrams of a socket are worth a wake-up: a classic BPF program that the kernel runs on each (filter.rst)."""

from __future__ import annotations

import ctypes
import socket
import struct
from collections.abc import Sequence

_SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>
_INSTRUCTION = struct.Struct("=HBBI")  # struct sock_filter: code, jump if true, jump if false, operand
_LOAD_WORD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06  # BPF_LD | BPF_W | BPF_ABS; BPF_JMP | BPF_JEQ; BPF_RET
_ALL = 0xFFFFFFFF


def accept_words(offset: int, words: Sequence[int]) -> bytes:
    """Return a program that accepts a datagram when it has one of some 32-bit words, in host order, at an offset."""
    steps = [(_LOAD_WORD, 0, 0, offset)]
    # The load takes a word as big-endian.
    steps += [(_JUMP_EQUAL, len(words) - index, 0, socket.htonl(word)) for index, word in enumerate(words)]
    steps += [(_RETURN, 0, 0, 0), (_RETURN, 0, 0, _ALL)]
    return b"".join(_INSTRUCTION.pack(*step) for step in steps)


def attach(found: socket.socket, program: bytes) -> None:
    """Attach a program to a socket, in place of the one before. Raises OSError."""
    code = ctypes.create_string_buffer(program, len(program))
    count = len(program) // _INSTRUCTION.size
    # struct sock_fprog, as the machine aligns it; the kernel copies what it points to.
    found.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", count, ctypes.addressof(code)))
