"""One look at a scope: what the kernel allows and what systemd last said, as one observation."""

from __future__ import annotations

import time

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.guard import records
from gpuguard.guard.observe import SystemdView
from gpuguard.guard.parts import Parts
from gpuguard.guard.scope import Scope
from gpuguard.model.observation import Observation


def at(parts: Parts, scope: Scope) -> Observation:
    """Read the kernel's list of a scope; systemd is not asked. Raises CgroupGoneError."""
    target, view = scope.target, scope.view or SystemdView()
    seen, trouble = None, view.trouble
    # Before the list is read: what the hooks wrote until then is in it.
    starting = records.starting(parts, scope) if scope.start_matters else None
    try:
        seen = parts.devices.read(target.control_group, scope.entitled.rules if scope.entitled else ())
        if seen.inode != target.inode:
            raise CgroupGoneError(f"{target.control_group}: another control group has taken this name")
    except CgroupUnreadableError as error:
        trouble = str(error)
    if seen is not None and scope.seen is not None and seen.filters != scope.seen.filters:
        _rewritten(parts, scope)
    scope.seen = seen
    return Observation(
        unit=target.unit,
        control_group=target.control_group,
        inode=target.inode,
        at=time.monotonic(),
        effective=scope.effective,
        declared=view.declared,
        invocation=view.invocation,
        started=view.started,
        refusal=view.refusal,
        trouble=trouble,
        writable=parts.devices.writable,
        filters=seen.filters if seen is not None else (),
        starting=starting,
        elsewhere=scope.record.elsewhere if parts.devices.writable else None,
        managed=target.managed(writable=parts.devices.writable),
        unit_group="" if target.is_unit else target.unit_group or "",
    )


def _rewritten(parts: Parts, scope: Scope) -> None:
    """Note that programs were changed (cgroup v2); on v1 the sentinel tells of each write."""
    unit, now = scope.target.unit, time.monotonic()
    if parts.causes.own(unit, now):
        return
    cause = parts.causes.of_loss(unit, scope.target.control_group, now, scope.whole_at)
    scope.last = (time.time(), cause)
    parts.recorder.metrics.device_write(cause.program)
