"""The endpoint over real sockets: what it answers, to whom it does not listen, and that nobody can block it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Optional

import pytest
from blockbuster import blockbuster_ctx

from gpuguard.report import http
from tests.report.support import PATIENCE, until


class Subject:
    """A server, what it is asked to say, and what went wrong in its loop."""

    def __init__(self, listen: str = "127.0.0.1:0") -> None:
        self.trouble: Optional[str] = None
        self.accept: list[str] = []
        self.body = b"metric 1\n"
        self.server = http.Server(listen, self.render, lambda: self.trouble)

    def render(self, accept: str) -> tuple[str, bytes]:
        """Answer a scrape."""
        self.accept.append(accept)
        return "text/plain; version=0.0.4", self.body

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection."""
        return await asyncio.open_connection("127.0.0.1", self.server.ports[0])

    async def ask(self, request: bytes, *, eof: bool = False) -> bytes:
        """Send a request and return all that comes back until the server closes."""
        reader, writer = await self.connect()
        writer.write(request)
        if eof:
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        writer.close()
        return answer

    async def get(self, path: str) -> bytes:
        """Return the answer to a plain GET."""
        return await self.ask(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


@pytest.fixture
async def subject() -> AsyncIterator[Subject]:
    """Yield a server of which no call may block the loop and no error may reach the loop's handler."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    subject = Subject()
    with blockbuster_ctx("gpuguard"):
        await subject.server.start()
        yield subject
        await subject.server.stop()
    assert complaints == []


async def test_metrics(subject: Subject) -> None:
    """A scrape gets what was rendered for its Accept header, with type and length."""
    answer = await subject.ask(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: text/plain\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 200 OK",
        b"Content-Type: text/plain; version=0.0.4",
        b"Content-Length: 9",
        b"Connection: close",
    ]
    assert body == b"metric 1\n"
    assert subject.accept == ["text/plain"]


async def test_health(subject: Subject) -> None:
    """/healthz is 200, or 503 with the reason."""
    assert (await subject.get("/healthz")).endswith(b"\r\n\r\nok\n")
    subject.trouble = "no look at the containers for 60 s"
    answer = await subject.get("/healthz")
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"no look at the containers for 60 s\n")


async def test_index_and_unknown_paths(subject: Subject) -> None:
    """/ tells where the metrics are, and so does a 404."""
    for path, code in (("/", b"200"), ("/metric", b"404"), ("/../etc/passwd", b"404")):
        answer = await subject.get(path)
        assert answer.startswith(b"HTTP/1.1 " + code)
        assert b"/metrics" in answer


async def test_head(subject: Subject) -> None:
    """HEAD gets the head that GET would get."""
    answer = await subject.ask(b"HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
    assert b"Content-Length: 9\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"hello\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03\n\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 400),
        (b"POST /metrics HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"BREW / HTTP/1.1\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\nA: " + b"a" * 100_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"A: a\r\n" * 100_000 + b"\r\n", 431),
        (b"GET /" + b"a" * 100_000, 431),
    ],
)
async def test_bad_requests(subject: Subject, request_: bytes, code: int) -> None:
    """Each is told what is wrong, and gets the whole answer even if much of the request was never read."""
    answer = await subject.ask(request_)
    assert answer.startswith(f"HTTP/1.1 {code} ".encode())
    assert (b"Allow: GET, HEAD\r\n" in answer) == (code == 405)


@pytest.mark.parametrize("request_", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_request_that_ends_too_early(subject: Subject, request_: bytes) -> None:
    """A client that stops in the middle, as a port check does, gets a 400."""
    assert (await subject.ask(request_, eof=True)).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("request_", [b"", b"GET / HTTP/1.1\r\nHost: x\r\n"])
async def test_a_request_that_never_comes(subject: Subject, request_: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that says nothing more is told so and let go."""
    monkeypatch.setattr(http, "STEP_TIME", 0.1)
    assert (await subject.ask(request_)).startswith(b"HTTP/1.1 408 ")


async def test_a_client_that_does_not_read(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that nobody takes is given up, and its connection is free again."""
    monkeypatch.setattr(http, "STEP_TIME", 0.2)
    subject.body = b"x" * (32 << 20)
    _, writer = await subject.connect()
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    await until(lambda: bool(subject.accept))
    await until(lambda: not subject.server._connections)
    writer.transport.abort()


async def test_a_client_that_breaks_off(subject: Subject) -> None:
    """A reset in the middle of a request or an answer is nobody's error."""
    subject.body = b"x" * (8 << 20)
    for request in (b"GET /met", b"GET /metrics HTTP/1.1\r\n\r\n"):
        _, writer = await subject.connect()
        writer.write(request)
        await writer.drain()
        writer.transport.abort()
    await until(lambda: not subject.server._connections)
    assert (await subject.get("/healthz")).startswith(b"HTTP/1.1 200")


async def test_connections_are_bounded(subject: Subject) -> None:
    """Beyond the limit a client waits in the kernel, unread; it is served when another one leaves."""
    idle = [await subject.connect() for _ in range(http.MAX_CONNECTIONS)]
    await until(lambda: len(subject.server._connections) == http.MAX_CONNECTIONS)
    late = asyncio.ensure_future(subject.get("/healthz"))
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(asyncio.shield(late), 0.2)
    assert len(subject.server._connections) == http.MAX_CONNECTIONS
    for _, writer in idle:
        writer.close()
    assert (await late).startswith(b"HTTP/1.1 200")


async def test_many_clients_at_once(subject: Subject) -> None:
    """Three times as many as are served at a time all get their answer."""
    answers = await asyncio.gather(*(subject.get("/metrics") for _ in range(3 * http.MAX_CONNECTIONS)))
    assert {answer.endswith(b"metric 1\n") for answer in answers} == {True}


async def test_an_error_of_our_own(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the metrics cannot be made, the scrape fails and the loop's handler is told; the server goes on."""
    told: list[BaseException] = []
    loop = asyncio.get_running_loop()
    silent = loop.get_exception_handler()
    loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
    monkeypatch.delattr(subject, "body")
    assert await subject.get("/metrics") == b""
    await until(lambda: not subject.server._connections)
    gc.collect()
    assert [type(error) for error in told] == [AttributeError]
    loop.set_exception_handler(silent)
    assert (await subject.get("/healthz")).startswith(b"HTTP/1.1 200")


async def test_stop_with_open_connections(subject: Subject) -> None:
    """Stopping ends idle connections at once and frees the port."""
    reader, writer = await subject.connect()
    await until(lambda: bool(subject.server._connections))
    port = subject.server.ports[0]
    await subject.server.stop()
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
    writer.close()
    with pytest.raises(ConnectionError):
        await asyncio.open_connection("127.0.0.1", port)


async def test_stop_at_the_moment_of_a_connection(subject: Subject) -> None:
    """A connection that was accepted in the same turn of the loop is closed too: else a ResourceWarning fails this."""
    with socket.create_connection(("127.0.0.1", subject.server.ports[0])):
        while not subject.server._connections:  # noqa: ASYNC110 - each single turn counts
            await asyncio.sleep(0)
        await subject.server.stop()
    gc.collect()


async def test_unix_socket(tmp_path: Path) -> None:
    """The endpoint can be a path instead of a port, and takes it away when it stops."""
    path = tmp_path / "metrics.sock"
    subject = Subject(f"unix:{path}")
    await subject.server.start()
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
    assert (await asyncio.wait_for(reader.read(), PATIENCE)).endswith(b"ok\n")
    writer.close()
    assert subject.server.ports == []
    await subject.server.stop()
    assert not path.exists()
