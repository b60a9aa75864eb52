"""Filters on real sockets: the kernel runs them."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuguard.kernel.socket_filter import accept_words, attach

Pair = tuple[socket.socket, socket.socket]
WORDS = st.integers(0, 2**32 - 1)


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return two ends of a connection that keeps datagrams apart."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    near.settimeout(0)
    with near, far:
        yield near, far


def accepted(pair: Pair, data: bytes) -> bool:
    """Whether a datagram arrives."""
    near, far = pair
    far.send(data)
    try:
        return near.recv(64) == data
    except BlockingIOError:
        return False


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(WORDS, min_size=1, max_size=8), other=WORDS, offset=st.integers(0, 40))
def test_words(pair: Pair, words: list[int], other: int, offset: int) -> None:
    """Exactly the datagrams with one of the words in its place arrive, whole."""
    attach(pair[0], accept_words(offset, words))
    for word in (*words, other):
        data = bytes(offset) + struct.pack("=I", word) + b"more"
        assert accepted(pair, data) == (word in words)


def test_too_short(pair: Pair) -> None:
    """A datagram that ends before the word does not arrive."""
    attach(pair[0], accept_words(4, [0]))
    assert not accepted(pair, bytes(7))
    assert accepted(pair, bytes(8))


def test_a_program_that_is_none(pair: Pair) -> None:
    """The kernel refuses what is no program."""
    with pytest.raises(OSError, match="Invalid argument"):
        attach(pair[0], b"\xff" * 8)
