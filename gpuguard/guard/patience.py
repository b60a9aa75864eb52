"""How long what systemd declares is left to systemd to write, before it is given back in its place."""

from __future__ import annotations

import asyncio
import time

from gpuguard.guard.parts import Parts
from gpuguard.guard.scope import Scope
from gpuguard.model.process import INIT
from gpuguard.model.write import LONGEST_REWRITE

# Seconds.
_SECOND_LOOK = 0.002


async def wait(parts: Parts, scope: Scope) -> None:
    """Wait until systemd should have written what is missing: 2 ms, and on cgroup v1 as long as it is at work.

    Whether it is still at work is asked before the list is read again, which it may end meanwhile.
    """
    deadline = time.monotonic() + LONGEST_REWRITE
    while True:
        await asyncio.sleep(_SECOND_LOOK)
        if time.monotonic() >= deadline or not _at_work(parts, scope):
            return


def _at_work(parts: Parts, scope: Scope) -> bool:
    """Whether systemd may be in the middle of its rewrite: it writes one rule after the other.

    It never writes to a group below its unit's, and gives back only what it has taken itself.
    """
    if not parts.devices.writable or (scope.seen is not None and scope.seen.payload is not None):
        return False
    if parts.causes.denied_by_another(scope.target.control_group, scope.whole_at or 0.0):
        return False
    return parts.processes.runs(INIT)
