"""What the journal's entries say of who did something to a container. Pure."""

from __future__ import annotations

from typing import Any

from gpuguard.guard.scope import Scope
from gpuguard.model.cause import Cause
from gpuguard.model.requester import chain, text
from gpuguard.model.rule import Rule
from gpuguard.model.state import State


def state_without(scope: Scope, lost: frozenset[Rule]) -> str:
    """Return the state that a scope was in while it was without some rules."""
    if scope.entitled is not None and not scope.entitled.settled:
        return State.SETTLING.value
    some = scope.entitled is not None and bool(scope.entitled.rules - lost)
    return str(State.PARTIAL.value if some else State.LOST.value)


def blame(cause: Cause) -> dict[str, Any]:
    """Return the fields that tell by whom, why, and for whom."""
    writer = cause.writer
    return {
        "cause": cause.cause,
        "property": list(cause.properties) or None,
        "writer": cause.program,
        "writer_pid": None if writer is None else writer.pid,
        "writer_exe": None if writer is None else writer.exe or None,
        "writer_unit": None if writer is None else writer.unit,
        "requester": text(chain(cause.requester)) or None,
    }
