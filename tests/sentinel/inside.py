"""The sentinel's loop in the test's own process: what it does between two events is to be seen there alone."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from gpuguard.errors import FanotifyError
from gpuguard.kernel.fanotify import EVENT, HANDLE_AT
from gpuguard.model.write import Watched
from gpuguard.sentinel import dozer
from gpuguard.sentinel.link import Link
from gpuguard.sentinel.scope import Scope
from gpuguard.sentinel.settings import Settings
from gpuguard.sentinel.wire import Message, decode, encode
from gpuguard.sentinel.writes import Writes
from tests.kernel.groups import MOUNT, Groups
from tests.sentinel.driven import rules

GPU0, GPU1, NULL = "c 195:0 rw", "c 195:1 rw", "c 1:3 rwm"
NOBODY = 0
"""The number of a process outside the pid namespace."""
_MUCH = 1 << 20


class Inside:
    """A loop that goes round when it is told to, and scopes that no systemd knows. Get it by `inside()`."""

    def __init__(self, groups: Groups, writes: Writes, daemon: socket.socket, dozer: socket.socket) -> None:
        self.groups = groups
        self.writes = writes
        self.dozer = dozer
        self._daemon = daemon

    def watch(
        self,
        *,
        undeclared: tuple[str, ...] = (),
        declared: tuple[str, ...] = (),
        heal: bool = True,
        growing: bool = False,
    ) -> Scope:
        """Have the scope watched, which is made with these rules unless it is watched already."""
        groups = self.groups
        known = self.writes._scopes.named(groups.named(groups.scope))
        inode = groups.make(groups.scope, NULL, *undeclared, *declared) if known is None else known.watched.inode
        watched = Watched(groups.named(groups.scope), inode, rules(*undeclared), rules(*declared), heal, growing)
        self.writes._watching.watch(watched)
        scope = self.writes._scopes.named(watched.control_group)
        assert scope is not None
        return scope

    def by_another(self, file: str, *lines: str) -> int:
        """Have another process write lines to a file of the scope, and return its number."""
        path = self.groups.path(self.groups.scope) / file
        text = "; ".join(f"echo {line} > {path}" for line in lines)
        with subprocess.Popen(["sh", "-c", text]) as process:
            return process.pid

    @contextmanager
    def writing(self, file: str, line: str) -> Iterator[int]:
        """Have another process write a line to a file of the scope, and be there, by its number, for the block."""
        path = self.groups.path(self.groups.scope) / file
        text = f"echo {line} > {path} && echo done; read end"
        with subprocess.Popen(["sh", "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"done\n"
            yield process.pid
            process.communicate()

    def tell(self, *messages: Message) -> None:
        """Say something as the daemon would, and have it heard."""
        self._daemon.sendall(b"".join(map(encode, messages)))
        self.writes._listen()

    def leave(self) -> None:
        """End as the daemon ends."""
        self._daemon.shutdown(socket.SHUT_RDWR)

    def said(self) -> list[Message]:
        """Return what it has said since the last time."""
        text = b""
        with contextlib.suppress(BlockingIOError):
            while True:
                text += self._daemon.recv(_MUCH)
        return [decode(line) for line in text.splitlines()]

    def told(self) -> list[Message]:
        """Have it tell all that it has to, and return that."""
        while self.writes._teller.busy:
            self.writes._teller.step()
        return self.said()


@contextmanager
def inside(groups: Groups, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    """Make one with nobody in its dozer's place."""
    daemon, ours = socket.socketpair()
    mine, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(dozer, "start", lambda *_: mine)
    with daemon, mine, its, contextlib.closing(Link(ours.detach())) as link:
        daemon.setblocking(False)  # noqa: FBT003 - its only argument
        settings = Settings("v1", MOUNT.parent, Path("/proc"), link.fileno(), 2, 60.0, 30.0)
        writes = Writes(link, settings)
        yield Inside(groups, writes, daemon, its)
        for scope in writes._scopes:
            writes._scopes.drop(scope)
        for group in (writes._scopes.denies, writes._scopes.allows, writes._scopes.calm):
            group.close()


def event(pid: int, key: bytes) -> bytes:
    """Return an event as the kernel makes it."""
    length = HANDLE_AT + len(key)
    head = EVENT.pack(length, 3, 0, EVENT.size, 2, -1, pid)
    return head + struct.pack("=BBHQ", 1, 0, length - EVENT.size, 0) + key


def refuse(*_: object) -> NoReturn:
    """Set no mark, in the place of Fanotify's methods."""
    raise FanotifyError("no space left")


def descriptors() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - its own descriptor is in it each time
