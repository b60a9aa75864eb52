"""What the runtimes' own files say of a scope, and when it is read."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Optional, Protocol

from gpuguard.errors import GpuguardError, RuntimeFileLateError, RuntimeFileUnreadableError
from gpuguard.model.grant import Source
from gpuguard.model.runtime_record import RuntimeRecord

if TYPE_CHECKING:
    from gpuguard.guard.parts import Parts, Policy
    from gpuguard.guard.scope import Scope

# Seconds.
_AGAIN = 1.0
_PATIENCE = 15.0
_LATER = 300.0
# In which a runtime may have other processes of its own in the control group, and nothing on disk.
_NEW = 2.0


class Records(Protocol):
    """Reads what runtimes and kernel say of a container."""

    async def read(self, scope: Scope) -> RuntimeRecord:
        """Return what is known of the container of a scope. Raises GpuguardError."""

    def close(self) -> None:
        """Let go of what reads."""


def due(parts: Parts, scope: Scope) -> bool:
    """Whether the files are to be read: for the first time, again after the start, or with other devices."""
    now = time.monotonic()
    if scope.premature or (scope.vacant and not _vacant(parts, scope)):
        return True
    # A container of which there are no files has no trouble.
    again = _PATIENCE if scope.record.late else _LATER
    if (scope.record.trouble is not None or scope.record.late) and now - scope.consulted >= again:
        return True
    if scope.record.path is None:
        # Some files are written when the control group is there already: looked for after 1, 2, 4, ... seconds.
        waited = scope.consulted - scope.known_since
        if waited < _PATIENCE:
            return now - scope.consulted >= max(_AGAIN, waited)
    elif scope.early:
        return now - scope.consulted >= _AGAIN
    if scope.record.elsewhere is not None and now - scope.consulted >= _PATIENCE:
        return True
    return scope.generation != parts.guarded.generation


async def consult(parts: Parts, policy: Policy, scope: Scope) -> None:
    """Read the files where that is due. What cannot be believed says nothing, and is told if it stays so."""
    if due(parts, scope) or (scope.record.path is None and _new(scope)):
        await _read(parts, policy, scope)


async def confirm(parts: Parts, policy: Policy, scope: Scope) -> None:
    """Read files that may not have been there before, now that the container's list was read.

    What its own program has done to that list it has done after its runtime's files were there.
    """
    if unread(scope):
        await _read(parts, policy, scope)


async def _read(parts: Parts, policy: Policy, scope: Scope) -> None:
    scope.generation, scope.consulted = parts.guarded.generation, time.monotonic()
    # Before the container is looked at: what the hook mounted until then is seen.
    at_work, vacant = starting(parts, scope), _vacant(parts, scope)
    try:
        read = await parts.records.read(scope)
        # On cgroup v2 the v1 hierarchy that may be there beside it counts for nobody.
        scope.record = read if parts.devices.writable else replace(read, elsewhere=None)
    except GpuguardError as error:
        scope.record = _as_before(scope.record, error)
        if scope.consulted - scope.known_since >= _PATIENCE:
            parts.recorder.troubles.unbelieved(scope.target.control_group, error)
    young = time.time() - scope.record.since < policy.settle
    scope.early = scope.record.asked and bool(at_work or young)
    scope.premature = scope.record.path is None and bool(at_work)
    scope.vacant = scope.record.path is None and vacant and scope.consulted - scope.known_since < _PATIENCE


def starting(parts: Parts, scope: Scope) -> Optional[bool]:
    """Whether the container has not begun its own program; None where that cannot be told."""
    return parts.start_phase.starting(scope.target.control_group, scope.record.pid)


def unread(scope: Scope) -> bool:
    """Whether the files may not have been there when they were last read: the next look reads them before it learns."""
    return scope.premature or scope.vacant or (scope.record.path is None and _new(scope))


def _new(scope: Scope) -> bool:
    learns = scope.entitled is None or not scope.entitled.settled
    return learns and time.monotonic() - scope.known_since < _NEW


def _vacant(parts: Parts, scope: Scope) -> bool:
    """Whether there is nobody in the container yet."""
    group = scope.target.control_group
    try:
        return not (parts.devices.populated(group) or parts.devices.groups_below(group))
    except GpuguardError:  # the look tells why
        return False


def settled(scope: Scope) -> RuntimeRecord:
    """Return what grants: not what was read while NVIDIA's hook may have been at work, which is read again."""
    return replace(scope.record, grants=()) if scope.early else scope.record


def _as_before(known: RuntimeRecord, error: GpuguardError) -> RuntimeRecord:
    """Return what is left of what was read when it cannot be read again: what does not change in a container's life.

    Above all a container that may write its own list may do so still. What NVIDIA's hook gave is another matter once
    the devices have changed. Where the container's user may be the reason it is not believed: a first process may have
    left its control group, a file may be too large, and reading it, or many of them, may take too long.
    """
    late = isinstance(error, RuntimeFileLateError)
    if known.path is None:
        outside = known.trusted is not False and isinstance(error, RuntimeFileUnreadableError)
        return RuntimeRecord(trusted=None if outside else False, trouble=str(error), late=late)
    grants = tuple(grant for grant in known.grants if grant.source is not Source.REQUEST)
    return replace(known, grants=grants, trouble=str(error), late=late)
