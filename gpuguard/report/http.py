"""The HTTP endpoint: /metrics, /healthz and an index. Bounded in every direction, one response per connection."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import Optional

from gpuguard.report.http_message import Request, Response
from gpuguard.report.listen import close_listener, open_listeners
from gpuguard.report.tls import TlsFiles

MAX_CONNECTIONS = 16
MAX_HEAD = 8192
# Seconds for each of: the TLS handshake, the request's head, the response and the client's farewell.
STEP_TIME = 5.0

_ACCEPT_PAUSE = 1.0
_CHUNK = 1 << 16
_MAX_LEFTOVER_CHUNKS = 16
_INDEX = "gpuguard: the metrics are at /metrics, the daemon's own health at /healthz"

Render = Callable[[str], "tuple[str, bytes]"]
Health = Callable[[], Optional[str]]


class Server:
    """Serves `render` (Accept header → content type and body) and `health` (None, or what is wrong).

    Both are called in the loop; for an error in them the client gets no answer and asyncio's handler the
    traceback. More than MAX_CONNECTIONS wait in the kernel's backlog, before anything is read or a
    handshake begun.
    """

    def __init__(self, listen: str, render: Render, health: Health, tls: Optional[TlsFiles] = None) -> None:
        self._listen = listen
        self._render = render
        self._health = health
        self._tls = tls
        self._context: Optional[ssl.SSLContext] = None
        self._listeners: list[socket.socket] = []
        self._acceptors: list[asyncio.Task[None]] = []
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def ports(self) -> list[int]:
        """The TCP ports that are listened on: what port 0 became."""
        return [listener.getsockname()[1] for listener in self._listeners if listener.family != socket.AF_UNIX]

    async def start(self) -> None:
        """Listen and serve until stop(). Raises ConfigError when the address or the TLS files cannot be used."""
        await self.renew()
        self._listeners = await open_listeners(self._listen)
        slots = asyncio.Semaphore(MAX_CONNECTIONS)
        self._acceptors = [asyncio.ensure_future(self._accept(listener, slots)) for listener in self._listeners]

    async def renew(self) -> None:
        """Read the TLS files again, for the connections to come. Raises ConfigError; then the old ones stay."""
        if self._tls is not None:
            self._context = await asyncio.to_thread(self._tls.context)

    async def stop(self) -> None:
        """Close the sockets and all connections."""
        # The acceptors first: a connection that was accepted this moment then begins, and can be ended in order.
        for tasks in (self._acceptors, self._connections):
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for listener in self._listeners:
            await asyncio.to_thread(close_listener, listener)
        self._listeners, self._acceptors = [], []

    async def _accept(self, listener: socket.socket, slots: asyncio.Semaphore) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await slots.acquire()
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:
                # The client has gone already, or this process has no file descriptor left.
                slots.release()
                await asyncio.sleep(_ACCEPT_PAUSE)
                continue
            self._begin(connection, slots)

    def _begin(self, connection: socket.socket, slots: asyncio.Semaphore) -> None:
        task = asyncio.ensure_future(self._serve(connection))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        task.add_done_callback(lambda _: slots.release())

    async def _serve(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=MAX_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            transport, _ = await loop.connect_accepted_socket(
                lambda: protocol,
                connection,
                ssl=self._context,
                ssl_handshake_timeout=STEP_TIME if self._context else None,
            )
        except OSError:
            # No TLS, no certificate that is accepted here, or already gone: nobody to answer to.
            connection.close()
            return
        writer = asyncio.StreamWriter(transport, protocol, reader, loop)
        try:
            writer.write(await self._respond(reader))
            await asyncio.wait_for(_part(reader, writer), STEP_TIME)
        except (OSError, asyncio.TimeoutError):
            # A client that has gone or does not take its answer is no concern of ours.
            pass
        finally:
            transport.abort()

    async def _respond(self, reader: asyncio.StreamReader) -> bytes:
        try:
            request = Request.parse(await asyncio.wait_for(_read_head(reader), STEP_TIME))
        except asyncio.TimeoutError:
            return Response.text(HTTPStatus.REQUEST_TIMEOUT, "no whole request in time").encode()
        except asyncio.LimitOverrunError:
            return Response.text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request is too long").encode()
        except asyncio.IncompleteReadError:
            return Response.text(HTTPStatus.BAD_REQUEST, "the request ends too early").encode()
        except ValueError as error:
            return Response.text(HTTPStatus.BAD_REQUEST, str(error)).encode()
        if request.method not in {"GET", "HEAD"}:
            return Response.text(HTTPStatus.METHOD_NOT_ALLOWED, "GET and HEAD only", "Allow: GET, HEAD").encode()
        return self._route(request).encode(head_only=request.method == "HEAD")

    def _route(self, request: Request) -> Response:
        if request.path == "/metrics":
            content_type, body = self._render(request.headers.get("accept", ""))
            return Response(HTTPStatus.OK, body, content_type)
        if request.path == "/healthz":
            trouble = self._health()
            if trouble is None:
                return Response.text(HTTPStatus.OK, "ok")
            return Response.text(HTTPStatus.SERVICE_UNAVAILABLE, trouble)
        if request.path == "/":
            return Response.text(HTTPStatus.OK, _INDEX)
        return Response.text(HTTPStatus.NOT_FOUND, _INDEX)


async def _read_head(reader: asyncio.StreamReader) -> bytes:
    """Read up to the empty line, whether lines end in CR LF or LF. Raises LimitOverrunError beyond MAX_HEAD."""
    head = b""
    while True:
        line = await reader.readuntil(b"\n")
        if line in {b"\r\n", b"\n"}:
            return head
        head += line
        if len(head) > MAX_HEAD:
            raise asyncio.LimitOverrunError("the head is too long", len(head))


async def _part(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Get the response out, then wait for the client to close.

    To close with input unread makes the kernel send a reset, which can take the response away from
    the client; therefore what is left of a refused request is read, within bounds, and thrown away.
    """
    await writer.drain()
    if not writer.can_write_eof():
        writer.close()
        await writer.wait_closed()
        return
    writer.write_eof()
    for _ in range(_MAX_LEFTOVER_CHUNKS):
        if not await reader.read(_CHUNK):
            return
