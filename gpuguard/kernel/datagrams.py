"""What the kernel sends to a netlink socket, read on the event loop.

pyroute2 makes the socket. Its own way of reading puts each datagram through a queue without a bound and an object of
its own, takes three times as long, and raises inside the event loop on a message that is shorter than it expects.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from typing import Any, Callable, Optional

from gpuguard.errors import SourceError
from gpuguard.kernel.pace import Pace
from gpuguard.kernel.socket_filter import attach

# <asm-generic/socket.h>: like SO_RCVBUF, and with CAP_NET_ADMIN beyond net.core.rmem_max.
_SO_RCVBUFFORCE = 33
_BUFFER = 4 * 1024 * 1024  # of the kernel's memory, and only while events wait in it
_LARGEST = 16384
_AT_ONCE = 64


class Datagrams:
    """One netlink socket of pyroute2's that is bound to `groups`, a mask. Whoever makes one closes it.

    `deliver` gets each datagram of the kernel's own, those that `program` (socket_filter) accepts; those of other
    senders are dropped. `ended` has, when it delivers no more, why.
    """

    def __init__(
        self,
        core: Any,  # noqa: ANN401 -- pyroute2 has no types
        groups: int,
        deliver: Callable[[bytes], None],
        pace: Pace,
        program: bytes = b"",
    ) -> None:
        self._core = core
        self._groups = groups
        self._deliver = deliver
        self._pace = pace
        self._program = program
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[str] = self._loop.create_future()
        self._socket: Optional[socket.socket] = None

    def open(self) -> None:
        """Begin to deliver. Raises SourceError."""
        try:
            found: socket.socket = self._core.socket
            found.settimeout(0)
            with contextlib.suppress(PermissionError):  # then it has what net.core.rmem_max allows
                found.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            if self._program:  # before any datagram can come
                attach(found, self._program)
            # pyroute2's own bind() tries 180 addresses whatever the error, and does not tell which it was.
            found.bind((0, self._groups))
        except OSError as error:
            raise SourceError(f"netlink: cannot listen: {_why(error)}") from error
        self._socket = found
        self._loop.add_reader(found.fileno(), self.read)

    def close(self) -> None:
        """Deliver no more, and let go of the socket."""
        self.end("closed")
        self._core.close()

    def send(self, data: bytes) -> None:
        """Send to the kernel. Raises SourceError."""
        try:
            self._core.socket.sendto(data, (0, 0))
        except OSError as error:
            raise SourceError(f"netlink: cannot send: {_why(error)}") from error

    def end(self, reason: str) -> None:
        """Deliver no more."""
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket = None
        if not self.ended.done():
            self.ended.set_result(reason)

    def read(self) -> None:
        """Deliver what has come, up to a bound; the event loop calls this."""
        for _ in range(_AT_ONCE):
            if self._socket is None:
                return
            try:
                data, (sender, _groups) = self._socket.recvfrom(_LARGEST)
            except BlockingIOError:
                return
            except OSError as error:
                self.end(f"netlink: {_why(error)}")
                return
            if sender != 0:
                continue
            if self._pace.exceeded(self._loop.time()):
                self.end(f"more than {self._pace.limit} events a second: not followed for a while")
                return
            self._deliver(data)


def _why(error: OSError) -> str:
    if error.errno == errno.ENOBUFS:
        return "events came faster than they were read, and some are lost"
    if error.errno in {errno.EPERM, errno.EACCES}:
        return "no permission: that takes CAP_NET_ADMIN"
    if error.errno in {errno.EPROTONOSUPPORT, errno.ECONNREFUSED}:
        return "the kernel has it not, or not in this network namespace"
    return os.strerror(error.errno or 0)
