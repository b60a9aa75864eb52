"""What the fake systemd answers when it refuses, by D-Bus error name."""

from __future__ import annotations

_DBUS = "org.freedesktop.DBus.Error"
_SYSTEMD = "org.freedesktop.systemd1"

INVALID_ARGS = f"{_DBUS}.InvalidArgs"
PROPERTY_READ_ONLY = f"{_DBUS}.PropertyReadOnly"
UNKNOWN_METHOD = f"{_DBUS}.UnknownMethod"
UNKNOWN_OBJECT = f"{_DBUS}.UnknownObject"
UNKNOWN_INTERFACE = f"{_DBUS}.UnknownInterface"
UNKNOWN_PROPERTY = f"{_DBUS}.UnknownProperty"
ENXIO = "System.Error.ENXIO"
ALREADY_SUBSCRIBED = f"{_SYSTEMD}.AlreadySubscribed"
NOT_SUBSCRIBED = f"{_SYSTEMD}.NotSubscribed"
NO_SUCH_UNIT = f"{_SYSTEMD}.NoSuchUnit"
NO_UNIT_FOR_PID = f"{_SYSTEMD}.NoUnitForPID"
UNIT_EXISTS = f"{_SYSTEMD}.UnitExists"


class BusFault(Exception):  # noqa: N818  # an answer on the wire, not a failure of the fake
    """An error reply: its name on the bus and its text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(f"{name}: {text}")
        self.name = name
        self.text = text
