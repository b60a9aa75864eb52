"""Reading D-Bus values: against dbus-next, which writes them, and against what nobody should send."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from dbus_next.message import Message
from dbus_next.signature import Variant
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.systemd import codec, unmarshal
from tests.systemd.peers import encoded

Typed = tuple[str, Any, Any]
"""A signature, a value as dbus-next takes it, and what it is to be read as."""

_NUMBERS = {"y": (0, 255), "n": (-(2**15), 2**15 - 1), "q": (0, 2**16 - 1), "i": (-(2**31), 2**31 - 1)}
_NUMBERS.update({"u": (0, 2**32 - 1), "x": (-(2**63), 2**63 - 1), "t": (0, 2**64 - 1)})
_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=9)


def _as_it_is(signature: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[Typed]:
    return values.map(lambda value: (signature, value, value))


BASIC = st.one_of(
    *(_as_it_is(kind, st.integers(*bounds)) for kind, bounds in _NUMBERS.items()),
    _as_it_is("b", st.booleans()),
    _as_it_is("d", st.floats(allow_nan=False)),
    _as_it_is("s", _TEXTS),
    _as_it_is("o", st.sampled_from(["/", "/org/freedesktop"])),
    _as_it_is("g", st.sampled_from(["", "a{sv}", "(ii)"])),
    _as_it_is("ay", st.binary(max_size=9)),
)


def _struct(fields: list[Typed]) -> Typed:
    return f"({''.join(kind for kind, _, _ in fields)})", [one for _, one, _ in fields], [one for _, _, one in fields]


def _variant(typed: Typed) -> Typed:
    kind, written, value = typed
    return "v", Variant(kind, written), value


def _array(typed: tuple[Typed, int]) -> Typed:
    (kind, written, value), count = typed
    if kind == "y":
        return "ay", bytes([written] * count), bytes([value] * count)
    return f"a{kind}", [written] * count, [value] * count


def _dictionary(typed: tuple[Typed, set[str]]) -> Typed:
    (kind, written, value), keys = typed
    return f"a{{s{kind}}}", dict.fromkeys(keys, written), dict.fromkeys(keys, value)


def _deeper(inner: st.SearchStrategy[Typed]) -> st.SearchStrategy[Typed]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map(_struct),
        inner.map(_variant),
        st.tuples(inner, st.integers(0, 3)).map(_array),
        st.tuples(inner, st.sets(_TEXTS, max_size=3)).map(_dictionary),
    )


TYPED = st.recursive(BASIC, _deeper, max_leaves=8)


@given(st.lists(TYPED, max_size=4))
def test_what_dbus_next_writes_is_read_as_it_was_meant(arguments: list[Typed]) -> None:
    """Values of all types, one behind the other and within each other, come out as they went in."""
    signature = "".join(kind for kind, _, _ in arguments)
    signal = Message.new_signal("/", "a.b", "C", signature, [written for _, written, _ in arguments])
    assert codec.decode(encoded(signal)).body == [value for _, _, value in arguments]


def test_the_other_byte_order() -> None:
    """A big-endian sender's numbers, lengths and texts are read."""
    data = struct.pack(">IHxxI", 7, 258, 2) + b"ab\0"
    assert unmarshal.read(">", "uqs", data) == ([7, 258, "ab"], len(data))


@given(st.data())
def test_less_than_a_whole_value_fails(data: st.DataObject) -> None:
    """Values that are cut off anywhere are refused."""
    signature, value = "a{sv}", {"abc": Variant("a(sv)", [["x", Variant("t", 5)]]), "d": Variant("ay", b"ef")}
    raw = encoded(Message.new_signal("/", "a.b", "C", signature, [value]))
    at = len(raw) - codec.size_of(raw)[1]
    cut = data.draw(st.integers(at, len(raw) - 1))
    with pytest.raises(unmarshal.FAILURES):
        unmarshal.read("<", signature, raw[:cut], at)


@pytest.mark.parametrize(
    ("signature", "data"),
    [
        ("a()", struct.pack("<II", 8, 0) + bytes(8)),
        ("()", bytes(8)),
        ("ai", struct.pack("<Iii", 6, 1, 2)),
        ("a{ss}", struct.pack("<II", 4, 0) + struct.pack("<I4xI4x", 0, 0)),
        ("as", struct.pack("<I", 2**32 - 1) + bytes(8)),
        ("ay", struct.pack("<I", 9) + bytes(8)),
        ("s", struct.pack("<I", 2**31) + b"abc\0"),
        ("s", struct.pack("<I", 3) + b"\xff\xfe\xfd\0"),
        ("v", b"\0\0"),
        ("v", b"\2ii\0" + bytes(8)),
        ("v", b"\1v\0" * 100_000),
        ("{ss}", bytes(16)),
        ("a{vs}", struct.pack("<II", 16, 0) + b"\2ai\0" + bytes(12)),
        ("a{s}", bytes(16)),
        ("a", bytes(8)),
        ("(i", bytes(8)),
        ("i)", bytes(8)),
        ("z", bytes(8)),
    ],
)
def test_what_is_no_value_fails(signature: str, data: bytes) -> None:
    """Types that there are not, lengths that do not fit, and bytes that are no text are refused, and end."""
    with pytest.raises(unmarshal.FAILURES):
        unmarshal.read("<", signature, data)


@given(st.text("ybnqiuxtdhsogav(){}", max_size=12), st.binary(max_size=100))
def test_any_bytes_come_to_an_end(signature: str, data: bytes) -> None:
    """Whatever the signature and the bytes are, reading them ends, in values or in one of FAILURES."""
    with contextlib.suppress(*unmarshal.FAILURES):
        unmarshal.read("<", signature, data)
