"""What BPF's arithmetic and comparisons do to two 64-bit numbers.

After the kernel's Documentation/bpf/standardization/instruction-set.rst. Numbers are kept as unsigned.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Optional

Operate = Callable[[int, int], int]
Compare = Callable[[int, int], bool]

MASK64 = (1 << 64) - 1
MASK32 = (1 << 32) - 1

JEQ = 0x10
JNE = 0x50
MOV = 0xB0
NEG = 0x80
XOR = 0xA0


def arithmetic(code: int, mask: int) -> Optional[Operate]:
    """Return what the operation does in 32 or 64 bits (`mask`), None when there is none of that code."""
    bits = mask.bit_length()
    plain = _PLAIN.get(code)
    if plain is not None:
        return lambda left, right: plain(left & mask, right & mask) & mask
    shift = _SHIFTS.get(code)
    if shift is not None:
        return lambda left, right: shift(left & mask, right & (bits - 1)) & mask
    if code == _ARSH:
        return lambda left, right: (_signed(left, mask) >> (right & (bits - 1))) & mask
    return None


def comparison(code: int, mask: int) -> Optional[Compare]:
    """Return what the jump's condition asks of 32 or 64 bits (`mask`), None when there is none of that code."""
    plain = _UNSIGNED.get(code)
    if plain is not None:
        return lambda left, right: plain(left & mask, right & mask)
    signed = _SIGNED.get(code)
    if signed is not None:
        return lambda left, right: signed(_signed(left, mask), _signed(right, mask))
    return None


def _signed(value: int, mask: int) -> int:
    value &= mask
    return value - mask - 1 if value > mask >> 1 else value


_ARSH = 0xC0
_PLAIN: dict[int, Operate] = {
    0x00: operator.add,
    0x10: operator.sub,
    0x20: operator.mul,
    0x30: lambda left, right: left // right if right else 0,
    0x40: operator.or_,
    0x50: operator.and_,
    NEG: lambda left, _: -left,
    0x90: lambda left, right: left % right if right else left,
    XOR: operator.xor,
}
_SHIFTS: dict[int, Operate] = {0x60: operator.lshift, 0x70: operator.rshift}
_UNSIGNED: dict[int, Compare] = {
    JEQ: operator.eq,
    0x20: operator.gt,
    0x30: operator.ge,
    0x40: lambda left, right: bool(left & right),
    JNE: operator.ne,
    0xA0: operator.lt,
    0xB0: operator.le,
}
_SIGNED: dict[int, Compare] = {0x60: operator.gt, 0x70: operator.ge, 0xC0: operator.lt, 0xD0: operator.le}
