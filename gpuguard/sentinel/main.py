"""The sentinel's program. It ends when the daemon does, or is told to."""

from __future__ import annotations

import contextlib
import gc
import resource
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from gpuguard.kernel import scheduling
from gpuguard.sentinel.link import DaemonGoneError, Link
from gpuguard.sentinel.settings import Settings

_TOO_BUSY = "it ran for half a second without waiting, and gave the real-time class up"


def main() -> int:
    """Watch until the daemon is gone."""
    settings = Settings.parse(sys.argv[1:])
    # Ctrl-C in a terminal is for the daemon, whose end is ours.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _leave)
    _more_descriptors()
    link = Link(settings.fd)
    standing = scheduling.hurry()
    signal.signal(signal.SIGXCPU, lambda *_: link.post(scheduling.relent(_TOO_BUSY)))
    with contextlib.suppress(DaemonGoneError):
        link.send(standing)
        watch = _loop(settings.mode)
        gc.freeze()  # what is made at the start stays, and need not be gone through again
        watch(link, settings)
    return 0


def _loop(mode: str) -> Callable[[Link, Settings], NoReturn]:
    """Return what to do in this cgroup mode; each pays for its own imports alone."""
    if mode == "v2":
        from gpuguard.sentinel import programs  # noqa: PLC0415

        return programs.run
    from gpuguard.sentinel import writes  # noqa: PLC0415

    return writes.run


def _leave(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def _more_descriptors() -> None:
    """Take as many as may be had: some are kept for each scope."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
