"""D-Bus messages as bytes, and back.

The only file that knows dbus-next, of which it uses marshalling alone. Its MessageBus stays out: release 0.2.3
spins for ever in authentication when the bus hangs up (so the time limit around it never fires), dies of a full
socket buffer, answers calls that a monitor only overhears, and reads until the socket is empty while nothing else
in the process gets a turn. Its decoder stays out as well: it takes seven times as long as ours.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

from dbus_next.constants import MessageFlag
from dbus_next.message import Message
from dbus_next.signature import Variant

from gpuguard.errors import BusError
from gpuguard.systemd import unmarshal

HEAD = 16  # bytes that tell a message's length: D-Bus specification, "Message Format"
CALL, REPLY, ERROR, SIGNAL = 1, 2, 3, 4

_LITTLE, _BIG = ord("l"), ord("B")
_PROTOCOL = 1
# D-Bus specification, "Header Fields".
_PATH, _INTERFACE, _MEMBER, _ERROR_NAME, _REPLY_SERIAL, _SENDER, _SIGNATURE = 1, 2, 3, 4, 5, 7, 8


class Call(NamedTuple):
    """One method call to send. Values of type `v` in the body are made by variant()."""

    destination: str
    path: str
    interface: str
    member: str
    signature: str = ""
    body: Sequence[Any] = ()


class Incoming(NamedTuple):
    """One received message. The body is plain Python: structs are lists, variants are unwrapped."""

    kind: int
    reply_to: Optional[int]
    sender: str
    path: str
    interface: str
    member: str
    error: str
    body: list[Any]


def variant(signature: str, value: object) -> object:
    """Return a value for a place of type `v` in a body that is to be sent."""
    return Variant(signature, value)


def encode(serial: int, call: Call) -> bytes:
    """Return a method call that never starts a service. Raises BusError when the body does not fit its signature."""
    try:
        message = Message(
            destination=call.destination,
            path=call.path,
            interface=call.interface,
            member=call.member,
            flags=MessageFlag.NO_AUTOSTART,
            signature=call.signature,
            body=list(call.body),
            serial=serial,
        )
        # There is no public way to encode.
        return bytes(message._marshall())  # type: ignore[no-untyped-call]  # noqa: SLF001
    except (ValueError, TypeError) as error:
        raise BusError(f"cannot send {call.interface}.{call.member} to {call.destination}: {error}") from error


def kind_of(head: bytes) -> int:
    """Return the message type of a message that begins with these bytes."""
    return head[1]


def size_of(head: bytes) -> tuple[int, int]:
    """Return how long the rest of the header (padded) and the body are, given the first 16 bytes."""
    order = "<" if head[0] == _LITTLE else ">"
    body, _, fields = struct.unpack_from(order + "III", head, 4)
    return (fields + 7) // 8 * 8, body


def first_string(head: bytes, body: bytes) -> str:
    """Return a body's first argument, which must be a string; far cheaper than decode()."""
    length = int.from_bytes(body[:4], "little" if head[0] == _LITTLE else "big")
    return body[4 : 4 + length].decode(errors="replace")


def decode(raw: bytes) -> Incoming:
    """Read one whole message. Raises BusError when that fails, whatever the bytes are."""
    try:
        return _decode(raw)
    except unmarshal.FAILURES as error:
        raise BusError(f"a D-Bus message of {len(raw)} bytes cannot be read: {error!r}") from error


def _decode(raw: bytes) -> Incoming:
    if raw[0] not in {_LITTLE, _BIG} or raw[1] not in {CALL, REPLY, ERROR, SIGNAL} or raw[3] != _PROTOCOL:
        raise ValueError("it does not begin as one")
    order = "<" if raw[0] == _LITTLE else ">"
    [pairs], end = unmarshal.read(order, "a(yv)", raw, HEAD - 4)
    fields = dict(pairs)
    body, _ = unmarshal.read(order, _text(fields, _SIGNATURE), raw, (end + 7) // 8 * 8)
    serial = fields.get(_REPLY_SERIAL)
    return Incoming(
        kind=raw[1],
        reply_to=serial if isinstance(serial, int) else None,
        sender=_text(fields, _SENDER),
        path=_text(fields, _PATH),
        interface=_text(fields, _INTERFACE),
        member=_text(fields, _MEMBER),
        error=_text(fields, _ERROR_NAME),
        body=body,
    )


def _text(fields: Mapping[int, object], field: int) -> str:
    text = fields.get(field, "")
    if not isinstance(text, str):
        raise TypeError(f"header field {field} is {text!r}")
    return text
