"""journald's native protocol: one datagram an entry (systemd.io, JOURNAL_NATIVE_PROTOCOL)."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import re
import socket
from collections.abc import Sequence
from typing import Optional

SOCKET = "/run/systemd/journal/socket"

Fields = Sequence["tuple[str, str]"]

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
_TOO_BIG = {errno.EMSGSIZE, errno.ENOBUFS}
_MAX_NAME = 64


def field_name(text: str) -> str:
    """Return what journald takes for a field's name: capitals, digits and _, no digit or _ in front, ≤ 64 long."""
    return re.sub(r"[^A-Z0-9_]", "_", text.upper()).lstrip("_0123456789")[:_MAX_NAME] or "FIELD"


def encode(fields: Fields) -> bytes:
    """Return an entry as it goes over the wire. A name may be there several times: the field has several values.

    No value can end its field: one with a newline goes with its length in front.
    """
    entry = bytearray()
    for name, text in fields:
        value = text.encode("utf-8", "backslashreplace")
        entry += field_name(name).encode()
        if b"\n" in value:
            entry += b"\n" + len(value).to_bytes(8, "little") + value + b"\n"
        else:
            entry += b"=" + value + b"\n"
    return bytes(entry)


class Journal:
    """A way into the journal that never waits: what journald cannot take now is dropped and counted.

    The socket is not connected: a journald that was restarted is found again by its path at each entry.
    """

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path
        self._socket: Optional[socket.socket] = None
        self.dropped = 0
        """Entries that are missing since the last one that arrived."""

    def send(self, fields: Fields) -> None:
        """Send one entry; after a gap it tells in GPUGUARD_DROPPED_ENTRIES how many are missing before it."""
        gap = [("GPUGUARD_DROPPED_ENTRIES", str(self.dropped))] if self.dropped else []
        try:
            self._send(encode([*fields, *gap]))
        except OSError:
            # Not there, restarting, or slow; to tell that would need the journal.
            self.dropped += 1
        else:
            self.dropped = 0

    def close(self) -> None:
        """Close the socket; the next entry opens another."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, entry: bytes) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            self._socket.settimeout(0)
        try:
            self._socket.sendto(entry, self._path)
        except OSError as error:
            if error.errno not in _TOO_BIG:
                raise
            _send_file(self._socket, self._path, entry)


def _send_file(sender: socket.socket, path: str, entry: bytes) -> None:
    memory = os.memfd_create("gpuguard-journal", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    with open(memory, "wb") as file:  # noqa: PTH123 - a descriptor is no path
        file.write(entry)
        file.flush()
        # journald takes a memory file only when nobody can change it any more.
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        sender.sendmsg([], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [memory]))], 0, path)
