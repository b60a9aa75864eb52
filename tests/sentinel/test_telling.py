"""What waits to be told is bounded."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from gpuguard.kernel.processes import Processes
from gpuguard.model.process import Process
from gpuguard.model.write import Watched
from gpuguard.sentinel import telling
from gpuguard.sentinel.link import Link
from gpuguard.sentinel.scope import Happening, Scope
from gpuguard.sentinel.telling import Teller
from gpuguard.sentinel.wire import Overflow, decode

SCOPE = cast("Scope", SimpleNamespace(watched=Watched("/a.scope", 7)))


@pytest.fixture
def ends() -> Iterator[tuple[Teller, socket.socket]]:
    """Return a teller, and the daemon's end of its socket."""
    daemon, ours = socket.socketpair()
    with daemon, contextlib.closing(Link(ours.detach())) as link:
        yield Teller(link, Path("/proc")), daemon


@pytest.mark.invariant(10)
def test_a_flood_is_bounded(ends: tuple[Teller, socket.socket], monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too much is not looked into, and told as an overflow."""
    teller, daemon = ends
    monkeypatch.setattr(telling, "_MOST", 10)
    for _ in range(15):
        happening = Happening(SCOPE, 1.0, denied=True, pid=os.getpid())
        teller.happened(happening)
        teller.over(happening)
    steps = 0
    while teller.busy:
        teller.step()
        steps += 1
    assert steps == 20
    told = [decode(line) for line in daemon.recv(1 << 20).splitlines()]
    assert told.count(Overflow()) == 5
    assert len(told) == 15


class Searches:
    """Finds the same process each time, and counts."""

    def __init__(self) -> None:
        self.searched = self.read_again = 0

    def requester(self, _wanted: object, _seconds: float) -> tuple[Process, ...]:
        """Return whom systemd serves."""
        self.searched += 1
        return (Process(77, "systemctl"),)

    def read(self, pid: int) -> Process:
        """Return a process."""
        self.read_again += 1
        return Process(pid, "systemd")


def test_one_search_for_a_reload(
    ends: tuple[Teller, socket.socket], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom systemd writes for is the same as long as he waits, in one burst of writes."""
    monkeypatch.setattr(telling, "_BURST", 1000.0)
    teller, searches, now = ends[0], Searches(), time.monotonic()
    teller._proc, teller._processes = tmp_path, cast("Processes", searches)
    (tmp_path / "77").mkdir()
    seen = []
    for at, waits in ((now, True), (now + 1, True), (now + 2, False), (now + 5000, True), (now + 5001, True)):
        if not waits:
            (tmp_path / "77").rmdir()
        assert [process.pid for process in teller._waiting(at)] == [77]
        (tmp_path / "77").mkdir(exist_ok=True)
        seen.append((searches.searched, searches.read_again))
    assert seen == [(1, 1), (1, 1), (2, 1), (3, 2), (3, 2)]
