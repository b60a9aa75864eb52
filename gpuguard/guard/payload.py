"""What is written to a scope or to the container's own group below it (cgroup v1, crun) is one container's list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.errors import GpuguardError
from gpuguard.guard.parts import Parts
from gpuguard.guard.scope import Scope
from gpuguard.model.device_list import Payload
from gpuguard.model.write import Write


def scope_of(scopes: Mapping[str, Scope], write: Write) -> Optional[Scope]:
    """Return the scope whose list, or whose container's list, was written; None for any other."""
    scope = scopes.get(write.control_group)
    if scope is not None:
        return scope if scope.target.inode == write.inode else None
    scope = scopes.get(str(PurePosixPath(write.control_group).parent))
    written = Payload(write.control_group, write.inode)
    return scope if scope is not None and scope.payload == written else None


def of_the_container(parts: Parts, scope: Scope, write: Write) -> Write:
    """Return a write as one to the container's list, under the name of its scope.

    What a scope is denied the kernel takes from the container's group as well, where only a look gives it back; a
    scope without a filter does not even show it. So the container's list is read now, for what came of it.
    """
    target = scope.target
    if write.control_group != target.control_group:
        return replace(write, control_group=target.control_group, inode=target.inode)
    if scope.payload is None:
        return write
    after = None
    try:
        after = parts.devices.read(target.control_group, scope.owed).rules
    except GpuguardError as error:
        parts.recorder.trouble(target.control_group, error)
    return replace(write, before=scope.effective, after=after, restored=frozenset(), whole_at=None)
