"""The way from a deny of systemd's to what it took being back, and nothing else.

One flat function on purpose: a process that has just been woken has none of its code in the processor's caches, and
each function more that it goes through costs some 5 µs (decision 15).
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Mapping
from typing import NamedTuple, Optional

from gpuguard.kernel.device_files import GLANCE
from gpuguard.kernel.fanotify import AT_ONCE, EVENT, HANDLE_AT
from gpuguard.sentinel.scope import Scope

_SYSTEMD = 1
# Seconds that others get the processor for after something was written, unless there is the next deny: what runs here
# is in the way of the container that was just healed. And how often in a row that is put off.
_MOMENT = 0.0001
_MOST = 64


class Reflex(NamedTuple):
    """What was done for a scope: when, the list as it was found, and when it had been written, None for not at all."""

    at: float
    found: bytes
    written_at: Optional[float]


def answer(fd: int, scopes: Mapping[bytes, Scope], done: dict[bytes, Reflex]) -> list[bytes]:
    """Read the denies that wait in a fanotify group with handles, and give back what systemd has taken.

    systemd denies "a", everything, and nothing less: that is what its cgroup_apply_devices() writes on every version
    with cgroup v1. Where a list is as it was it is still to be written: some programs empty a file first. What was done
    is noted in `done`, by the keys of the files; what was read is returned, all of it. What fails is not noted, and
    left to whoever goes through the events.
    """
    read, glance, write, clock, unpack = os.read, os.pread, os.write, time.monotonic, EVENT.unpack_from
    events: list[bytes] = []
    while len(events) < _MOST:
        try:
            some = read(fd, AT_ONCE)
        except OSError:
            break
        events.append(some)
        start, wrote = 0, False
        while start < len(some):
            length, _, _, _, _, _, pid = unpack(some, start)
            key = some[start + HANDLE_AT : start + length]
            start += length
            scope = scopes.get(key) if pid == _SYSTEMD else None
            if scope is None or not scope.first:
                continue
            try:
                at, found = clock(), glance(scope.files.list, GLANCE, 0)
                if found != scope.beginning:
                    for line in scope.first:
                        write(scope.files.allow, line)
                    wrote = True
            except OSError:
                continue
            done[key] = Reflex(at, found, clock() if wrote else None)
        if not wrote or not select.select((fd,), (), (), _MOMENT)[0]:
            break
    return events
