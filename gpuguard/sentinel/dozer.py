"""Hears of writes that can wait, for the sentinel: a process that takes no processor from whoever writes.

Who is woken by systemd's deny may take its processor in the middle of its rewrite, and lengthens the gap that there is
anyway. A process of the batch class is not woken before others (sched(7)); what systemd does it passes on when that is
over, what others do at once, since they may be gone soon.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import time
from collections.abc import Iterable
from typing import NoReturn

from gpuguard.kernel.fanotify import AT_ONCE, HANDLE_AT, PID_AT, Fanotify
from gpuguard.sentinel.reflex import SYSTEMD

# Seconds that a rewrite is given: it takes a tenth of a millisecond where systemd has a processor to itself.
_REWRITE = 0.003
_LEAST = 19
# Sent to it, it comes back when all that was heard before is passed on. Shorter than any event.
ASKED = b"?"


def start(group: Fanotify, other: Iterable[int]) -> socket.socket:
    """Start it, and return where the events of a group with handles come from then; it ends when that is closed.

    Where there may be no more processes it is as if it had been killed at once. `other` are descriptors that are not
    for it: the daemon must see the sentinel's end. Raises OSError.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not _child():
        theirs.close()
        return ours
    try:
        ours.close()
        for fd in other:
            os.close(fd)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        os.setpriority(os.PRIO_PROCESS, 0, _LEAST)
        _doze(group.fileno(), theirs)
    finally:
        os._exit(0)


def _child() -> bool:
    """Make a child, and return whether this is it."""
    try:
        return os.fork() == 0
    except OSError:  # pids.max of its control group, for one
        return False


def _doze(group: int, out: socket.socket) -> NoReturn:
    poll = select.poll()
    poll.register(group, select.POLLIN)
    poll.register(out, select.POLLIN)
    while True:
        if any(fd == out.fileno() for fd, _ in poll.poll()):
            if not out.recv(len(ASKED)):
                raise SystemExit  # nobody is there any more
            out.send(ASKED)
            continue
        try:
            events = os.read(group, AT_ONCE)
        except BlockingIOError:  # the sentinel was quicker
            continue
        if _all_by_systemd(events):
            time.sleep(_REWRITE)
        out.send(events)


def _all_by_systemd(events: bytes) -> bool:
    start = 0
    while start < len(events):
        if events[start + PID_AT : start + PID_AT + 4] != SYSTEMD:
            return False
        start += max(events[start], HANDLE_AT)
    return True
