"""Finds out who wrote and for whom, and tells the daemon: whenever there is nothing to heal."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import Optional

from gpuguard.kernel.processes import Processes
from gpuguard.model.process import INIT, Process
from gpuguard.model.request import asks_for_rules
from gpuguard.sentinel.link import Link
from gpuguard.sentinel.scope import Happening
from gpuguard.sentinel.wire import Overflow

# Seconds. A reload rewrites one scope after the other, for one and the same requester.
_BURST = 0.1
# Seconds for one search, in which nothing is healed.
_SEARCH = 0.002
_MOST = 2048


class Teller:
    """Keeps what happened until it may be told. `proc` is the host's /proc."""

    def __init__(self, link: Link, proc: Path) -> None:
        self._link = link
        self._proc = proc
        self._processes = Processes(proc)
        self._nameless: deque[Happening] = deque()
        self._done: deque[Happening] = deque()
        self._requester: tuple[Process, ...] = ()
        self._systemd: Optional[Process] = None
        self._searched = float("-inf")
        self._last = float("-inf")

    @property
    def busy(self) -> bool:
        """Whether there is something to find out or to tell."""
        return bool(self._nameless or self._done)

    def identify(self, pid: int) -> Optional[Process]:
        """Return the process that wrote, None when it is gone or cannot be seen."""
        return self._processes.read(pid) if pid > 0 else None

    def runs(self, pid: int) -> bool:
        """Whether a process is running, or waits for nothing but a processor."""
        return self._processes.runs(pid)

    def happened(self, happening: Happening) -> None:
        """Have somebody's name found, as long as he is there. Where too many wait for that it is not."""
        if happening.pid and len(self._nameless) < _MOST:
            self._nameless.append(happening)

    def over(self, happening: Happening) -> None:
        """Have it told. Raises DaemonGoneError."""
        if len(self._done) < _MOST:
            self._done.append(happening)
        else:
            self._link.send(Overflow())

    def step(self) -> None:
        """Do one of the things that there are to do. Raises DaemonGoneError."""
        if self._nameless:
            self._name(self._nameless.popleft())
        elif self._done:
            self._link.send(self._done.popleft().written())

    def _name(self, happening: Happening) -> None:
        if happening.pid == INIT:
            happening.requester = self._waiting(happening.at)
            happening.writer = self._systemd
        elif happening.writer is not None:
            writer = happening.writer
            happening.requester = (writer, *self._processes.lineage(writer.parent))

    def _waiting(self, at: float) -> tuple[Process, ...]:
        """Return whom systemd writes for."""
        now = time.monotonic()
        if at - self._last > _BURST or self._systemd is None:
            self._systemd = self._processes.read(INIT)
            self._searched = float("-inf")
        self._last = max(at, self._last)
        waits = bool(self._requester) and (self._proc / str(self._requester[0].pid)).exists()
        if now - self._searched > _BURST or (self._requester and not waits):
            self._searched = now
            self._requester = self._processes.requester(asks_for_rules, _SEARCH)
        return self._requester
