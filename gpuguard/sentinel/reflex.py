"""The way from a deny of systemd's to what it took being back, and nothing else.

One flat function on purpose, with all that it needs at hand: a process that has just been woken has none of its code in
the processor's caches, and each function more that it goes through costs some 5 µs (decision 15). The length of an
event is below 256: its first byte is enough, on a machine that has the lowest byte first, as all that run this have.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from gpuguard.kernel.device_files import GLANCE
from gpuguard.kernel.fanotify import AT_ONCE, HANDLE_AT, PID_AT
from gpuguard.model.process import INIT
from gpuguard.sentinel.scope import Scope

SYSTEMD = INIT.to_bytes(4, sys.byteorder)
# Seconds that others get the processor for, unless there is the next deny: what runs here is in the way of the
# container that was just healed, and of systemd, which is about to write what it knows. While it reloads the one that
# asked for that waits; else he may be gone soon, and has to be found. And for how long, and how often, that is put off.
_MOMENT = 0.0002
_WHILE_RELOADING = 0.002
_LONGEST = 0.01
_MOST = 64


class Reflex(NamedTuple):
    """What was done for a scope: when, the list as it was found, and when it had been written."""

    at: float
    found: bytes
    written_at: float


class Surroundings(NamedTuple):
    """What else is going on while denies are answered.

    The `growing` scopes; the group that hears what is `allowed`; `lull` has that wake nobody in a scope for a moment.
    """

    growing: Collection[str] = ()
    allowed: int = -1
    lull: Callable[[Scope], None] = lambda _: None
    reloading: Callable[[], bool] = lambda: False


NOTHING = Surroundings()
Answered = tuple[list[bytes], dict[bytes, Reflex]]


def answerer(  # noqa: C901 - flat on purpose
    fd: int, scopes: Mapping[bytes, Scope], around: Surroundings = NOTHING
) -> Callable[[], Answered]:
    """Return what reads the denies that wait in a fanotify group with handles, and gives back what systemd has taken.

    systemd denies "a", everything, and nothing less: that is what its cgroup_apply_devices() writes on every version
    with cgroup v1. Where a list is as it was it is still to be written: some programs empty a file first. What was read
    is returned, all of it, and what was done, by the keys of the files. What fails is in none, and left to whoever goes
    through the events. While there are growing scopes what is allowed is waited for, too: what a hook writes to one of
    these has to be seen before systemd comes there. Not what systemd itself is about to allow in the scope: each would
    wake us in the middle of the rewrite.
    """
    growing, lull, reloading = around.growing, around.lull, around.reloading
    read, glance, write, clock, wait = os.read, os.pread, os.write, time.monotonic, select.select
    denied, written, nobody = (fd,), (fd, around.allowed), ()

    def answer() -> Answered:  # noqa: C901 - the same
        events: list[bytes] = []
        done: dict[bytes, Reflex] = {}
        ends = clock() + _LONGEST
        while True:
            try:
                some = read(fd, AT_ONCE)
            except OSError:
                return events, done
            start, systemds = 0, True
            while start < len(some):
                end = start + some[start]
                if some[start + PID_AT : start + PID_AT + 4] == SYSTEMD:
                    key = some[start + HANDLE_AT : end]
                    scope = scopes.get(key)
                    if scope is not None and growing:
                        lull(scope)
                    if scope is not None and scope.first:
                        try:
                            at, found = clock(), glance(scope.files.list, GLANCE, 0)
                            if found != scope.beginning:
                                for line in scope.first:
                                    write(scope.files.allow, line)
                                done[key] = Reflex(at, found, clock())
                        except OSError:
                            done.pop(key, None)
                else:  # it may be gone soon, and has to be identified
                    systemds = False
                start = end if end > start else len(some)
            events.append(some)
            waiting = written if growing else denied
            moment = _WHILE_RELOADING if reloading() else _MOMENT
            if not systemds or len(events) >= _MOST or clock() > ends or not wait(waiting, nobody, nobody, moment)[0]:
                return events, done

    return answer
