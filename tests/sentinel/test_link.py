"""The sentinel's end of the socket, against one that a test holds the other end of."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

import pytest

from gpuguard.model.write import Standing
from gpuguard.sentinel.link import DaemonGoneError, Link
from gpuguard.sentinel.wire import LONGEST, Awake, Forget, Message, Overflow, Ping, Pong, decode, encode

LONG = Standing("nice", "x" * 10_000)


@pytest.fixture
def daemon() -> Iterator[tuple[socket.socket, Link]]:
    """Return the daemon's end, and the link."""
    ours, theirs = socket.socketpair()
    link = Link(theirs.detach())
    with ours:
        yield ours, link
        link.close()


def heard(ours: socket.socket, link: Link, text: bytes = b"") -> list[Message]:
    """Return all that the daemon gets when it takes everything at last, after what it has."""
    ours.settimeout(0.1)
    with contextlib.suppress(TimeoutError, socket.timeout):  # one and the same since Python 3.10
        while True:
            text += ours.recv(1 << 20)
            link.flush()
    return [decode(line) for line in text.splitlines()]


def test_lines_in_pieces(daemon: tuple[socket.socket, Link]) -> None:
    """A message is taken when it is complete."""
    ours, link = daemon
    assert link.receive() == []
    text = encode(Forget("/a")) + encode(Awake(3.0)) + encode(Ping(1))
    ours.sendall(text[:10])
    assert link.receive() == []
    ours.sendall(text[10:])
    assert link.receive() == [Forget("/a"), Awake(3.0), Ping(1)]


def test_what_makes_no_sense(daemon: tuple[socket.socket, Link], capsys: pytest.CaptureFixture[str]) -> None:
    """It is told, answered, and passed over."""
    ours, link = daemon
    ours.sendall(b"garbage\n" + encode(Pong(1)) + encode(Ping(2)))
    assert link.receive() == [Ping(2)]
    assert heard(ours, link) == [Overflow(), Overflow()]
    assert "not a message" in capsys.readouterr().err


def test_a_line_without_an_end(daemon: tuple[socket.socket, Link], capsys: pytest.CaptureFixture[str]) -> None:
    """It is not kept, and complained of once; what follows it is understood."""
    ours, link = daemon
    for _ in range(3 * LONGEST // 50_000):
        ours.sendall(b"x" * 50_000)
        assert link.receive() == []
    ours.sendall(b"\n" + encode(Ping(2)))
    assert link.receive() == [Ping(2)]
    assert heard(ours, link) == [Overflow()]
    assert capsys.readouterr().err.count("without an end") == 1


def test_a_daemon_that_does_not_listen(daemon: tuple[socket.socket, Link]) -> None:
    """Nothing waits for it; what is too much is left out, which is told where it is missing."""
    ours, link = daemon
    for _ in range(1000):
        link.send(LONG)
    assert link.full
    said = heard(ours, link)
    assert 300 < said.count(LONG) < 600
    assert said[-1] == Overflow()
    link.send(Pong(1))
    assert heard(ours, link) == [Pong(1)]


def test_an_overflow_comes_before_what_follows(daemon: tuple[socket.socket, Link]) -> None:
    """An answer says that all is told: that something is not told comes first."""
    ours, link = daemon
    for _ in range(1000):
        link.send(LONG)
    some = ours.recv(1 << 20)
    link.flush()
    link.send(Pong(1))
    said = heard(ours, link, some)
    assert said[-2:] == [Overflow(), Pong(1)]
    assert said.count(Overflow()) == 1


def test_the_daemon_s_end(daemon: tuple[socket.socket, Link]) -> None:
    """Told by whatever is tried next."""
    ours, link = daemon
    ours.close()
    with pytest.raises(DaemonGoneError):
        link.receive()
    with pytest.raises(DaemonGoneError):
        link.send(Pong(1))
