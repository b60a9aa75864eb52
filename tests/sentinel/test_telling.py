"""What waits to be told is bounded."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

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
