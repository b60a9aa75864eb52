"""A netlink socket on the event loop. NETLINK_USERSOCK carries what processes send each other, as root or not."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import SourceError
from gpuguard.kernel import netlink
from gpuguard.kernel.datagrams import Datagrams
from gpuguard.kernel.pace import Pace

USERSOCK = 2
NOWHERE = 31  # no netlink family


class Core:
    """What of a socket of pyroute2's is used, with any socket."""

    def __init__(self, found: socket.socket) -> None:
        self.socket = found

    def close(self) -> None:
        """Close it."""
        self.socket.close()


def descriptors() -> int:
    """Return how many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.fixture
def received() -> list[bytes]:
    """Return where datagrams are put."""
    return []


@pytest.fixture
def peer() -> Iterator[socket.socket]:
    """Return a socket of somebody else's."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, USERSOCK) as found:
        found.bind((0, 0))
        yield found


async def opened(received: list[bytes]) -> tuple[Datagrams, socket.socket]:
    """Return an open socket of our own."""
    core = Core(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, USERSOCK))
    datagrams = Datagrams(core, 0, received.append, Pace(100))
    datagrams.open()
    return datagrams, core.socket


async def test_only_the_kernel_is_heard(received: list[bytes], peer: socket.socket) -> None:
    """What another process sends is dropped."""
    datagrams, own = await opened(received)
    try:
        peer.sendto(b"forged", (own.getsockname()[0], 0))
        await asyncio.sleep(0.05)
        with pytest.raises(BlockingIOError):
            own.recv(1)
        assert received == []
    finally:
        datagrams.close()


async def test_the_end_is_told_once(received: list[bytes]) -> None:
    """Who waits for the end is told the first reason; after it nothing is read."""
    datagrams, _own = await opened(received)
    datagrams.end("enough")
    datagrams.close()
    datagrams.read()
    assert await datagrams.ended == "enough"


async def test_close_without_open(received: list[bytes]) -> None:
    """A socket that was never opened can be closed, and nothing can be sent on it."""
    core = Core(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, USERSOCK))
    datagrams = Datagrams(core, 0, received.append, Pace(100))
    datagrams.close()
    with pytest.raises(SourceError, match="netlink: cannot send: Bad file descriptor"):
        datagrams.send(b"")


async def test_a_family_that_is_not_there(received: list[bytes]) -> None:
    """A kernel without the family is named as the reason, and no descriptor is left."""
    before = descriptors()
    core = netlink.load().nlsocket.AsyncNetlinkSocket(NOWHERE)
    datagrams = Datagrams(core, 1, received.append, Pace(100))
    with pytest.raises(SourceError, match="netlink: cannot listen: the kernel has it not"):
        datagrams.open()
    datagrams.close()
    assert descriptors() == before


async def test_a_socket_of_pyroute2(received: list[bytes]) -> None:
    """pyroute2's socket is bound to what was asked for, and closed with it."""
    before = descriptors()
    core = netlink.load().uevent.AsyncUeventSocket()
    datagrams = Datagrams(core, 1, received.append, Pace(100))
    datagrams.open()
    assert core.socket.getsockname()[1] == 1
    datagrams.close()
    assert descriptors() == before
