"""The sentinel's end of its socket to the daemon. Nothing here waits: healing must not."""

from __future__ import annotations

import socket
import sys
from collections import deque

from gpuguard.errors import SentinelError
from gpuguard.model.write import Watched
from gpuguard.sentinel.wire import LONGEST, Awake, Forget, FromSentinel, Overflow, Ping, ToSentinel, decode, encode

# Bytes. A report is some 1,000, or 10 times that where somebody has a long command line.
_MOST_WAITING = 4 << 20
_AT_ONCE = 1 << 16
_OVERFLOW = encode(Overflow())


class DaemonGoneError(SentinelError):
    """The daemon has closed its end: there is nobody to watch for."""


class Link:
    """Takes what the daemon says, and tells it what happened.

    What the daemon is too slow to take waits here; what is too much is counted as an Overflow instead.
    """

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)  # noqa: FBT003 - its only argument
        self._read = bytearray()
        self._skipping = False
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._lost = False

    def fileno(self) -> int:
        """Return the descriptor, to be polled."""
        return self._socket.fileno()

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()

    @property
    def full(self) -> bool:
        """Whether something waits for the daemon to take it: call flush() when the socket is writable."""
        return bool(self._waiting)

    def receive(self) -> list[ToSentinel]:
        """Return what the daemon has said; call it when the socket is readable. Raises DaemonGoneError.

        What makes no sense is told on stderr, and answered with Overflow: the daemon must not rely on it.
        """
        try:
            more = self._socket.recv(_AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise DaemonGoneError(f"the socket to the daemon is broken: {error.strerror}") from error
        if not more:
            raise DaemonGoneError("the daemon is gone")
        self._read += more
        *lines, rest = self._read.split(b"\n")
        self._read = rest
        said = []
        for line in lines:
            if self._skipping:
                self._skipping = False
            else:
                said.extend(self._understood(bytes(line)))
        if len(self._read) > LONGEST:
            self._read.clear()
            if not self._skipping:
                self._odd("a line without an end")
            self._skipping = True
        return said

    def send(self, message: FromSentinel) -> None:
        """Tell the daemon, now or as soon as it takes it. Raises DaemonGoneError."""
        self.post(message)
        self.flush()

    def post(self, message: FromSentinel) -> None:
        """Have it told by the next flush(), for a signal handler."""
        line = encode(message)
        if self._bytes + len(line) + len(_OVERFLOW) > _MOST_WAITING:
            self._lost = True
            return
        if self._lost:
            self._lost = False
            self._append(_OVERFLOW)
        self._append(line)

    def _append(self, line: bytes) -> None:
        self._waiting.append(line)
        self._bytes += len(line)

    def flush(self) -> None:
        """Hand over as much of what waits as the daemon takes. Raises DaemonGoneError."""
        try:
            while self._waiting:
                line = self._waiting[0]
                sent = self._socket.send(line)
                self._bytes -= sent
                if sent < len(line):
                    self._waiting[0] = line[sent:]
                    return
                self._waiting.popleft()
                if self._lost and not self._waiting:
                    self._lost = False
                    self._append(_OVERFLOW)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            raise DaemonGoneError(f"the socket to the daemon is broken: {error.strerror}") from error

    def _understood(self, line: bytes) -> list[ToSentinel]:
        try:
            message = decode(line)
        except SentinelError as error:
            self._odd(str(error))
            return []
        if isinstance(message, (Watched, Forget, Awake, Ping)):
            return [message]
        self._odd(f"not for the sentinel: {type(message).__name__}")
        return []

    def _odd(self, why: str) -> None:
        sys.stderr.write(f"gpuguard sentinel: {why}\n")
        self.send(Overflow())
