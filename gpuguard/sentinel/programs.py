"""On cgroup v2: tells that somebody is about to change BPF programs, who, and for whom systemd does it."""

from __future__ import annotations

import contextlib
import re
import select
import time
from pathlib import Path
from typing import NoReturn, Optional

from gpuguard.errors import TraceUnavailableError
from gpuguard.kernel import tracefs
from gpuguard.kernel.processes import Processes
from gpuguard.kernel.tracefs import Call, Seen, Trace
from gpuguard.model.request import asks_for_rules
from gpuguard.model.write import ProgramsChanged
from gpuguard.sentinel.link import Link
from gpuguard.sentinel.settings import Settings
from gpuguard.sentinel.wire import Blind, Overflow, Ping, Pong

# A reload changes hundreds of programs, and any process may call bpf(2) a million times a second, to be refused. The
# first call is told at once, what follows after a pause, in seconds: a short one for so many times, of which so many
# come back each second, then a long one.
_SHORT_PAUSE = 0.01
_LONG_PAUSE = 0.16
_BURST = 20
_RETURNING = 8.0
# Of callers at a time. Whoever they are, everything is looked at.
_CALLERS = 8
# Seconds for finding out for whom.
_SEARCH = 0.005
# Seconds until it is tried again where there is no tracer: it may be mounted later.
_RETRY = 60.0

_LEADER = re.compile(rb"^Tgid:\t(\d+)$", re.MULTILINE)
_SYSTEMD = "systemd"


def run(link: Link, settings: Settings) -> NoReturn:
    """Tell of changes until the daemon is gone. Raises DaemonGoneError.

    Without the tracer that is told, and nothing else.
    """
    programs, blind = Programs(link, settings.proc), False
    while True:
        link.send(Blind(_watch(programs, link, resumed=blind)))
        blind = True
        programs.wait(_RETRY)


def _watch(programs: Programs, link: Link, *, resumed: bool) -> str:
    """Tell of changes for as long as there is a tracer; return why there is none. Raises DaemonGoneError."""
    try:
        with contextlib.closing(Trace(tracefs.mount())) as trace:
            if resumed:
                link.send(Overflow())
            programs.watch(trace)
    except TraceUnavailableError as error:
        return str(error)


class Pace:
    """How long to let calls gather: little at first, more when there is no end of them."""

    def __init__(self) -> None:
        self._left = float(_BURST)
        self._at = 0.0

    def pause(self, now: float) -> float:
        """Return the seconds until the next look, after one that was done at `now`, of a clock in seconds."""
        self._left = min(_BURST, self._left + _RETURNING * (now - self._at))
        self._at = now
        if self._left < 1:
            return _LONG_PAUSE
        self._left -= 1
        return _SHORT_PAUSE


class Programs:
    """Says what the tracer tells, and answers the daemon. `proc` is the host's /proc."""

    def __init__(self, link: Link, proc: Path) -> None:
        self._link = link
        self._proc = proc
        self._processes = Processes(proc)
        self._numbered = tracefs.numbers_are_ours(proc)

    def wait(self, seconds: float) -> None:
        """Do nothing but answer the daemon. Raises DaemonGoneError."""
        poll, end = select.poll(), time.monotonic() + seconds
        while time.monotonic() < end:
            poll.register(self._link, self._events())
            if poll.poll(1e3 * max(0.0, end - time.monotonic())):
                self._answer(None)

    def watch(self, trace: Trace) -> NoReturn:
        """Tell of changes, for ever. Raises DaemonGoneError, TraceUnavailableError."""
        # Whoever polls the tracer, for whatever, is woken at each call: between two looks the daemon alone is polled.
        daemon, both = select.poll(), select.poll()
        both.register(trace, select.POLLIN)
        pace, resume = Pace(), 0.0
        while True:
            left = resume - time.monotonic()
            poll = daemon if left > 0 else both
            poll.register(self._link, self._events())
            ready = dict(poll.poll(1e3 * left if left > 0 else None))
            if ready.get(trace.fileno()):
                self._tell(trace.read())
                now = time.monotonic()
                resume = now + pace.pause(now)
            if ready.get(self._link.fileno()):
                self._answer(trace)

    def _events(self) -> int:
        return select.POLLIN | (select.POLLOUT if self._link.full else 0)

    def _answer(self, trace: Optional[Trace]) -> None:
        self._link.flush()
        for message in self._link.receive():
            if isinstance(message, Ping):
                if trace is not None:
                    self._tell(trace.read())
                self._link.send(Pong(message.number))

    def _tell(self, seen: Seen) -> None:
        """Report each caller once, PID 1 before others."""
        first: dict[int, Call] = {}
        for call in seen.calls:
            first.setdefault(call.thread, call)
        for call in sorted(first.values(), key=self._is_systemd, reverse=True)[:_CALLERS]:
            self._link.send(self._report(call))
        if seen.lost:
            self._link.send(Overflow())

    def _report(self, call: Call) -> ProgramsChanged:
        # At once: whoever asked systemd is not there for long.
        asked = self._is_systemd(call)
        requester = self._processes.requester(asks_for_rules, _SEARCH) if asked else ()
        writer = self._processes.read(self._process(call.thread)) if self._numbered else None
        return ProgramsChanged(call.at, call.name or (writer.name if writer else ""), writer, requester)

    def _is_systemd(self, call: Call) -> bool:
        """Whether PID 1 called, as far as can be told: a name may be anybody's, and is not known at a first call."""
        return call.thread == 1 if self._numbered else call.name in {_SYSTEMD, ""}

    def _process(self, thread: int) -> int:
        """Return the number of a thread's process, 0 when it is gone: programs in Go call from any thread."""
        try:
            found = _LEADER.search((self._proc / str(thread) / "status").read_bytes())
        except OSError:
            return 0
        return int(found[1]) if found else 0
