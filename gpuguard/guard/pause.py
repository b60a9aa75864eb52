"""What a running daemon tells of its pauses: until when it gives a container nothing back.

The journal has the beginning and the end of each as `fight` and `fight_over`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timezone

from gpuguard.guard.scope import Scope
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus

_TO_BE_MENDED = frozenset({State.LOST, State.PARTIAL, State.AT_RISK})


def pauses(scopes: Iterable[Scope]) -> dict[str, float]:
    """Return the control groups that nothing is given back to for now, and until when, in seconds since the epoch."""
    now, wall = time.monotonic(), time.time()
    return {
        scope.target.control_group: wall + scope.backoff.until - now
        for scope in scopes
        if not scope.backoff.may_repair(now)
    }


def noted(container: ContainerStatus, paused: Mapping[str, float]) -> ContainerStatus:
    """Return a status whose reason has the pause: as a time of day, which stays the same while it lasts."""
    until = paused.get(container.cgroup)
    if until is None or container.state not in _TO_BE_MENDED:
        return container
    pause = (
        f"repairs are paused until {_moment(until)}: what they gave back was taken away again, or could not be given"
    )
    return replace(container, reason=f"{container.reason}; {pause}" if container.reason else pause)


def _moment(seconds: float) -> str:
    """Return the node's own time of day, with the date where it is not today's."""
    local, now = (datetime.fromtimestamp(at, timezone.utc).astimezone() for at in (round(seconds), time.time()))
    return local.strftime("%H:%M:%S" if local.date() == now.date() else "%Y-%m-%d %H:%M:%S")
