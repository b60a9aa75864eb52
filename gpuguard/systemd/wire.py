"""One authenticated D-Bus connection over a Unix socket: bytes out, messages in."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Callable, NamedTuple, Optional
from urllib.parse import unquote

from gpuguard.errors import BusError, BusUnavailableError
from gpuguard.systemd import codec

Deliver = Callable[[codec.Incoming], None]
# Looks at a signal's header and body before it is decoded; False drops it.
Wanted = Callable[[bytes, bytes], bool]

# systemd's longest answer, a list of all units, has some 350 bytes for each.
MAX_MESSAGE = 16 * 1024 * 1024
# A bus that does not read what it is sent is as good as gone.
MAX_UNSENT = 4 * 1024 * 1024
# Seconds of reading in a row before everything else in the process gets a turn.
TURN = 0.002

_CHUNK = 64 * 1024


class Intake(NamedTuple):
    """What a connection does with what it receives."""

    deliver: Deliver
    wanted: Optional[Wanted] = None
    max_message: int = MAX_MESSAGE  # in bytes; longer ones are passed over unread


class Connection:
    """A connection that has passed authentication. Made by open_connection()."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, intake: Intake) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._reader = reader
        self._writer = writer
        self._intake = intake
        self._task = asyncio.ensure_future(self._read())

    def send(self, data: bytes) -> None:
        """Queue one message. Raises BusUnavailableError when the connection is lost."""
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT:
            self._end("the bus has stopped reading")
        if self.lost.done():
            raise BusUnavailableError(f"the bus connection is lost: {self.lost.result()}")
        self._writer.write(data)

    async def close(self) -> None:
        """Close the socket, whatever is still unsent."""
        self._task.cancel()
        self._end("closed")
        with contextlib.suppress(OSError):  # the reason is in `lost`
            await self._writer.wait_closed()

    def _end(self, reason: str) -> None:
        if not self.lost.done():
            self.lost.set_result(reason)
        self._writer.transport.abort()

    async def _read(self) -> None:
        reason = "its reader failed"
        clock = asyncio.get_running_loop().time
        since = clock()
        try:
            while True:
                await self._read_one()
                if clock() - since > TURN:
                    # Buffered input is read without ever giving way: without this, a reload's storm of
                    # signals stops the whole process until its end.
                    await asyncio.sleep(0)
                    since = clock()
        except asyncio.IncompleteReadError:
            reason = "the bus hung up"
        except OSError as error:
            reason = str(error)
        except BusError as error:
            reason = str(error)
        finally:
            self._end(reason)

    async def _read_one(self) -> None:
        head = await self._reader.readexactly(codec.HEAD)
        fields, size = codec.size_of(head)
        if fields + size > self._intake.max_message:
            await self._skip(fields + size)
            return
        rest = await self._reader.readexactly(fields + size)
        kind = codec.kind_of(head)
        wanted = self._intake.wanted
        if kind == codec.SIGNAL and wanted and not wanted(head + rest[:fields], rest[fields:]):
            return
        try:
            message = codec.decode(head + rest)
        except BusError:
            if kind in (codec.REPLY, codec.ERROR):
                raise  # somebody waits for it
            return
        self._intake.deliver(message)

    async def _skip(self, size: int) -> None:
        while size:
            size -= len(await self._reader.readexactly(min(size, _CHUNK)))


async def open_connection(address: str, intake: Intake) -> Connection:
    """Connect and authenticate as this process's user; the caller sets a time limit.

    `address` is a D-Bus address such as "unix:path=/run/dbus/system_bus_socket". Raises BusUnavailableError,
    which names the address.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(_socket_path(address))
        try:
            await _authenticate(reader, writer)
        except BaseException:  # also when cancelled
            writer.transport.abort()
            raise
    except (OSError, BusUnavailableError) as error:
        raise BusUnavailableError(f"no D-Bus at {address}: {error}") from error
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise BusUnavailableError(f"no D-Bus at {address}: it hung up during authentication") from error
    return Connection(reader, writer, intake)


async def _authenticate(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    # D-Bus specification, "Authentication Protocol": a zero byte, then the user id, as hex of its decimal text.
    writer.write(b"\0AUTH EXTERNAL " + str(os.getuid()).encode().hex().encode() + b"\r\n")
    answer = (await reader.readuntil(b"\r\n")).decode(errors="replace").strip()
    if not answer.startswith("OK"):
        raise BusUnavailableError(f"it refuses user id {os.getuid()}: {answer}")
    writer.write(b"BEGIN\r\n")


def _socket_path(address: str) -> str:
    transport, _, text = address.strip().partition(":")
    options = dict(option.partition("=")[::2] for option in text.split(",") if option)
    if transport == "unix" and "path" in options:
        return unquote(options["path"])
    if transport == "unix" and "abstract" in options:
        return "\0" + unquote(options["abstract"])
    raise BusUnavailableError(f"cannot use address {address!r}: want unix:path=… or unix:abstract=…")
