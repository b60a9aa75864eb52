"""A bus that is no dbus-daemon: it authenticates, greets, and then does what a test wants, right or wrong."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Callable

from dbus_next.constants import MessageType
from dbus_next.message import Message

from tests.systemd.peers import encoded

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def reply_to(serial: int, signature: str = "", *body: object) -> bytes:
    """Return a reply as bytes."""
    message = Message(
        message_type=MessageType.METHOD_RETURN, reply_serial=serial, serial=serial, signature=signature, body=list(body)
    )
    return encoded(message)


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Do what a dbus-daemon does until its client has a name."""
    await reader.readuntil(b"\r\n")
    writer.write(b"OK 0123456789abcdef\r\n")
    await reader.readuntil(b"BEGIN\r\n")
    await reader.read(4096)  # Hello
    writer.write(reply_to(1, "s", ":1.1"))


@contextlib.asynccontextmanager
async def scripted_bus(script: Script, abstract: str = "") -> AsyncIterator[str]:
    """Serve with `script` at the address that is yielded; what it leaves open is closed."""
    directory = tempfile.mkdtemp(prefix="gpuguard-bus-")
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        tasks.add(task)
        try:
            await script(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client went, or the test is over
        finally:
            writer.transport.abort()

    server = await asyncio.start_unix_server(serve, f"\0{abstract}" if abstract else Path(directory) / "bus")
    try:
        yield f"unix:abstract={abstract}" if abstract else f"unix:path={directory}/bus"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        shutil.rmtree(directory)
