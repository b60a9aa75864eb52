"""Listening sockets: every spelling of an address, the modes of a path, and who may take over a stale one."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.errors import ConfigError
from gpuguard.report.listen import close_listener, open_listeners

needs_ipv6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this kernel has no IPv6")


@pytest.fixture
def loose_umask() -> Iterator[None]:
    """Take the most careless umask for the duration of a test."""
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.mark.parametrize(
    ("listen", "family"),
    [("127.0.0.1:0", socket.AF_INET), pytest.param("[::1]:0", socket.AF_INET6, marks=needs_ipv6)],
)
async def test_tcp(listen: str, family: socket.AddressFamily) -> None:
    """A port of its own, on IPv4 and on IPv6 in brackets."""
    (listener,) = await open_listeners(listen)
    with contextlib.closing(listener), socket.socket(family) as client:
        client.connect(listener.getsockname())
        assert listener.family == family
        assert listener.gettimeout() == 0


async def test_a_port_that_is_taken() -> None:
    """The error names the address and the reason."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"{listen}.*in use"):
            await open_listeners(listen)


async def test_a_host_that_is_unknown() -> None:
    """A name without an address is an error of the configuration."""
    with pytest.raises(ConfigError, match="no-such-host"):
        await open_listeners("no-such-host.invalid:10195")


async def test_a_name_that_is_none_is_named() -> None:
    """A host that DNS could not even be asked for is an error of the configuration, too."""
    with pytest.raises(ConfigError, match=r"a\.\.b:80"):
        await open_listeners("a..b:80")


@pytest.mark.usefixtures("loose_umask")
async def test_unix_path(tmp_path: Path) -> None:
    """Owner and group may connect, others not, whatever the umask; the path goes with the listener."""
    path = tmp_path / "metrics.sock"
    (listener,) = await open_listeners(f"unix:{path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
    close_listener(listener)
    assert not path.exists()


async def test_a_stale_unix_path_is_replaced(tmp_path: Path) -> None:
    """What a killed process left behind is no hindrance."""
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    (listener,) = await open_listeners(f"unix:{path}")
    close_listener(listener)


async def test_a_unix_path_with_a_listener_is_respected(tmp_path: Path) -> None:
    """Where somebody listens nothing is replaced, also when he is too busy to accept."""
    path = tmp_path / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as waiting:
        other.bind(str(path))
        other.listen(0)
        waiting.connect(str(path))
        with pytest.raises(ConfigError, match="in use"):
            await open_listeners(f"unix:{path}")
        assert path.is_socket()


async def test_a_file_is_never_replaced(tmp_path: Path) -> None:
    """A path that is no socket is not ours to remove."""
    path = tmp_path / "precious"
    path.write_text("data")
    with pytest.raises(ConfigError, match="in use"):
        await open_listeners(f"unix:{path}")
    assert path.read_text() == "data"


async def test_closing_leaves_the_path_to_a_successor(tmp_path: Path) -> None:
    """Another process that has put its socket there in the meantime keeps it."""
    path = tmp_path / "metrics.sock"
    (listener,) = await open_listeners(f"unix:{path}")
    path.unlink()
    (successor,) = await open_listeners(f"unix:{path}")
    close_listener(listener)
    assert path.exists()
    close_listener(successor)
