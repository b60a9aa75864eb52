"""Listening sockets for an address as the configuration spells it: "host:port", "[v6]:port" or "unix:/path"."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from pathlib import Path

from gpuguard.errors import ConfigError

BACKLOG = 64
UNIX_MODE = 0o660


async def open_listeners(listen: str) -> list[socket.socket]:
    """Bind and listen: one socket, or several for a name that has several addresses. All are non-blocking.

    Raises ConfigError.
    """
    try:
        if listen.startswith("unix:"):
            return [await asyncio.to_thread(_unix, Path(listen[len("unix:") :]))]
        return await _tcp(listen)
    except OSError as error:
        raise ConfigError(f"metrics listen {listen!r}: {error.strerror or error}") from error
    except UnicodeError as error:  # the host's name does not fit into DNS
        raise ConfigError(f"metrics listen {listen!r}: {error}") from error


def close_listener(listener: socket.socket) -> None:
    """Close a listening socket, and take its path away unless another process has put its own there. Blocks."""
    path = Path(listener.getsockname()) if listener.family == socket.AF_UNIX else None
    listener.close()
    if path is not None and _is_stale(path):
        path.unlink(missing_ok=True)


async def _tcp(listen: str) -> list[socket.socket]:
    host, _, port = listen.rpartition(":")
    infos = await asyncio.get_running_loop().getaddrinfo(
        host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    listeners: list[socket.socket] = []
    try:
        for family, kind, protocol, _, address in dict.fromkeys(infos):
            listener = socket.socket(family, kind, protocol)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                # "[::]" then leaves the port of 0.0.0.0 to whoever asks for it.
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            _listen(listener)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _unix(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        # On Linux the path gets the socket's own mode, less the umask: never a moment with more than UNIX_MODE.
        os.fchmod(listener.fileno(), UNIX_MODE)
        _bind(listener, path)
        path.chmod(UNIX_MODE)
        _listen(listener)
    except OSError:
        listener.close()
        raise
    return listener


def _bind(listener: socket.socket, path: Path) -> None:
    try:
        listener.bind(str(path))
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not _is_stale(path):
            raise
        path.unlink()
        listener.bind(str(path))


def _is_stale(path: Path) -> bool:
    """Whether it is a socket on which nobody listens."""
    if not path.is_socket():
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        # Where somebody listens whose backlog is full, this answers EAGAIN instead of waiting.
        probe.settimeout(0)
        return probe.connect_ex(str(path)) == errno.ECONNREFUSED


def _listen(listener: socket.socket) -> None:
    listener.settimeout(0)
    listener.listen(BACKLOG)
