"""Messages to bytes and back."""

from __future__ import annotations

import contextlib
import struct

import pytest
from dbus_next.message import Message
from dbus_next.signature import Variant
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import BusError
from gpuguard.systemd import codec
from tests.systemd.peers import MANAGER, SYSTEMD, SYSTEMD_PATH, encoded, manager_signal

CALL = codec.Call(SYSTEMD, SYSTEMD_PATH, MANAGER, "GetUnit", "s", ["a.scope"])
SIGNAL = encoded(manager_signal("UnitNew", "so", "docker-1.scope", "/"))


def parts(raw: bytes) -> tuple[bytes, bytes]:
    """Split a message into header and body as the connection does."""
    fields, body = codec.size_of(raw[: codec.HEAD])
    assert len(raw) == codec.HEAD + fields + body
    return raw[: codec.HEAD + fields], raw[codec.HEAD + fields :]


def test_a_call_is_read_back_as_it_was_meant() -> None:
    """What encode() writes, decode() reads: kind, names and body."""
    message = codec.decode(codec.encode(7, CALL))
    assert (message.kind, message.path) == (codec.CALL, SYSTEMD_PATH)
    assert (message.interface, message.member, message.body) == (MANAGER, "GetUnit", ["a.scope"])


def test_variants_are_unwrapped_at_every_depth() -> None:
    """A body holds plain Python values, also inside structs, arrays and dictionaries."""
    value = {"a": Variant("a(sv)", [["x", Variant("v", Variant("u", 5))]])}
    signal = Message.new_signal("/", "a.b", "C", "a{sv}", [value])
    assert codec.decode(encoded(signal)).body == [{"a": [["x", 5]]}]


@pytest.mark.parametrize("body", [[], [1], ["a", "b"], ["\udcff"]])
def test_a_body_that_does_not_fit_is_refused(body: list[object]) -> None:
    """Too few, wrong, too many or unencodable arguments are a BusError that names the method, not a broken bus."""
    with pytest.raises(BusError, match="GetUnit"):
        codec.encode(1, CALL._replace(body=body))


def test_the_length_of_a_message_is_known_from_its_first_bytes() -> None:
    """The first 16 bytes tell how much follows."""
    parts(codec.encode(1, CALL))
    parts(SIGNAL)


def test_the_first_string_is_read_without_decoding() -> None:
    """A signal's first argument can be had from the raw body."""
    assert codec.first_string(*parts(SIGNAL)) == "docker-1.scope"


def test_the_first_string_of_a_big_endian_sender_is_read() -> None:
    """The sender's byte order is respected."""
    assert codec.first_string(b"B", struct.pack(">I", 3) + b"abc\0") == "abc"


@given(st.binary(max_size=300))
def test_bytes_that_are_no_message_are_a_bus_error(raw: bytes) -> None:
    """Whatever arrives, decode() returns a message or raises BusError."""
    with contextlib.suppress(BusError):
        codec.decode(raw)


@given(st.integers(0, len(SIGNAL) - 1), st.binary(min_size=1, max_size=8))
def test_a_damaged_message_is_a_bus_error_at_worst(place: int, damage: bytes) -> None:
    """Damage in any place of a real message leads to a message or to BusError."""
    with contextlib.suppress(BusError):
        codec.decode(SIGNAL[:place] + damage + SIGNAL[place + len(damage) :])
