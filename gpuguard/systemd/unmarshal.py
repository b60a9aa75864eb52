"""D-Bus values from bytes: structs and arrays become lists, arrays of bytes bytes, variants what they hold.

D-Bus specification, "Marshaling (Wire Format)". Made for systemd's answers of a hundred properties each, many of
which come at once after a reload. Every reader moves on or raises, so that no bytes keep it busy for ever.
"""

from __future__ import annotations

import functools
import struct
from typing import Any, Callable, cast

# What comes of bytes that are no values or are cut off.
FAILURES = (ValueError, IndexError, KeyError, TypeError, RecursionError, struct.error)

# Reads the value at a place of the bytes; returns it and the place behind it.
Reader = Callable[[bytes, int], tuple[Any, int]]

_FIXED = {"y": "B", "b": "I", "n": "h", "q": "H", "i": "i", "u": "I", "x": "q", "t": "Q", "d": "d", "h": "I"}
_ALIGNMENT = {kind: struct.calcsize(letter) for kind, letter in _FIXED.items()}
_ALIGNMENT.update({"s": 4, "o": 4, "a": 4, "g": 1, "v": 1, "(": 8, "{": 8})


def read(order: str, signature: str, data: bytes, at: int = 0) -> tuple[list[Any], int]:
    """Return the values that lie at a place, and the place behind them; `order`: "<" or ">". Raises FAILURES."""
    values, end = _sequence(_readers(order, signature), data, at)
    if end > len(data):
        raise ValueError("it ends too early")
    return values, end


@functools.lru_cache(maxsize=1024)
def _readers(order: str, signature: str) -> tuple[Reader, ...]:
    """Return a reader for each complete type of a signature."""
    readers = []
    while signature:
        size = _type_size(signature)
        readers.append(_reader(order, signature[:size]))
        signature = signature[size:]
    return tuple(readers)


def _type_size(signature: str) -> int:
    """Return how many characters of a signature its first complete type has."""
    begin = len(signature) - len(signature.lstrip("a"))
    depth = 0
    for at in range(begin, len(signature)):
        depth += (signature[at] in "({") - (signature[at] in ")}")
        if depth <= 0:
            return at + 1
    raise ValueError(f"{signature!r} ends too early")


def _reader(order: str, kind: str) -> Reader:
    first = kind[0]
    if first in _FIXED:
        return _fixed(order, first)
    if first == "a":
        return _any_array(order, kind[1:])
    if first == "(" and len(kind) > 2:  # noqa: PLR2004 -- an empty one is none
        return _struct(_readers(order, kind[1:-1]))
    return {"s": _text, "o": _text, "g": lambda _: _signature, "v": _variant}[first](order)


def _any_array(order: str, element: str) -> Reader:
    if element == "y":
        return _bytes(order)
    if element[0] == "{":
        return _dictionary(order, element[1:-1])
    return _array(order, element)


def _fixed(order: str, kind: str) -> Reader:
    form = struct.Struct(order + _FIXED[kind])
    unpack, size = form.unpack_from, form.size

    def read_number(data: bytes, at: int) -> tuple[Any, int]:
        at = (at + size - 1) & -size
        return unpack(data, at)[0], at + size

    def read_boolean(data: bytes, at: int) -> tuple[bool, int]:
        value, at = read_number(data, at)
        return value != 0, at

    return read_boolean if kind == "b" else read_number


def _text(order: str) -> Reader:
    length = struct.Struct(f"{order}I").unpack_from

    def read_text(data: bytes, at: int) -> tuple[str, int]:
        at = (at + 7) & -4
        end = at + length(data, at - 4)[0]
        return data[at:end].decode(), end + 1

    return read_text


def _signature(data: bytes, at: int) -> tuple[str, int]:
    end = at + 1 + data[at]
    return data[at + 1 : end].decode(), end + 1


def _variant(order: str) -> Reader:
    def read_variant(data: bytes, at: int) -> tuple[Any, int]:
        signature, at = _signature(data, at)
        [reader] = _readers(order, signature)
        return reader(data, at)

    return read_variant


def _struct(fields: tuple[Reader, ...]) -> Reader:
    def read_struct(data: bytes, at: int) -> tuple[list[Any], int]:
        return _sequence(fields, data, (at + 7) & -8)

    return read_struct


def _sequence(readers: tuple[Reader, ...], data: bytes, at: int) -> tuple[list[Any], int]:
    values = []
    for reader in readers:
        value, at = reader(data, at)
        values.append(value)
    return values, at


def _extent(order: str, alignment: int) -> Callable[[bytes, int], tuple[int, int]]:
    """Return what finds the first element of an array and the place behind the last one."""
    length = struct.Struct(f"{order}I").unpack_from

    def extent(data: bytes, at: int) -> tuple[int, int]:
        at = (at + 3) & -4
        begin = (at + 4 + alignment - 1) & -alignment
        end = begin + length(data, at)[0]
        if end > len(data):
            raise ValueError("an array ends too early")
        return begin, end

    return extent


def _bytes(order: str) -> Reader:
    extent = _extent(order, 1)

    def read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
        begin, end = extent(data, at)
        return data[begin:end], end

    return read_bytes


def _array(order: str, element: str) -> Reader:
    extent, reader = _extent(order, _ALIGNMENT[element[0]]), _reader(order, element)

    def read_array(data: bytes, at: int) -> tuple[list[Any], int]:
        at, end = extent(data, at)
        values = []
        while at < end:
            value, at = reader(data, at)
            values.append(value)
        return values, _exactly(at, end)

    return read_array


def _dictionary(order: str, entry: str) -> Reader:
    extent, (read_key, read_value) = _extent(order, 8), cast("tuple[Reader, Reader]", _readers(order, entry))

    def read_dictionary(data: bytes, at: int) -> tuple[dict[Any, Any], int]:
        at, end = extent(data, at)
        found = {}
        while at < end:
            key, at = read_key(data, (at + 7) & -8)
            found[key], at = read_value(data, at)
        return found, _exactly(at, end)

    return read_dictionary


def _exactly(at: int, end: int) -> int:
    if at != end:
        raise ValueError("an array's last element ends behind it")
    return end
