"""The guard's work done once, for the commands: with the daemon where it must, without it where it can."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from gpuguard.config import Settings
from gpuguard.errors import BusError, ConfigError, GpuguardError, RuntimeFileError
from gpuguard.guard import control, verbs
from gpuguard.guard.build import Assembly, assemble
from gpuguard.guard.explain import explanation
from gpuguard.guard.find import find
from gpuguard.guard.guardian import guardian_of
from gpuguard.guard.lock import guard_lock
from gpuguard.guard.pause import noted
from gpuguard.guard.statuses import statuses
from gpuguard.kernel.mode import detect
from gpuguard.model.explanation import Explanation, LastWriter
from gpuguard.model.reports import ReleaseReport, RepairReport
from gpuguard.model.status import NodeStatus
from gpuguard.report.log import silent
from gpuguard.report.metrics import Metrics

_PATIENCE = 10.0


async def look(settings: Settings, fault: Optional[ConfigError] = None) -> NodeStatus:
    """Look at the node once; changes nothing, needs no daemon. Raises GpuguardError.

    `fault`: the settings are only what remains of a bad file; those of a running daemon make up for it.
    """
    guardian = await guardian_of(settings, fault)
    assembly = _quiet(guardian.settings, settle=guardian.settle)
    try:
        await _look_at_all(assembly)
        found = statuses(assembly.guard.scopes.values(), assembly.guard.parts.guarded.node_of)
        return NodeStatus(
            cgroup=detect(Path(settings.paths.cgroup)).value,
            systemd=await _systemd(assembly),
            mode=guardian.mode,
            daemon=guardian.daemon,
            containers=tuple(noted(one, guardian.paused) for one in found),
            trouble=guardian.trouble,
        )
    finally:
        await assembly.close()


async def explain(settings: Settings, name: str, fault: Optional[ConfigError] = None) -> Explanation:
    """Explain one container; changes nothing, needs no daemon. Raises GpuguardError; `fault`: as for look."""
    guardian = await guardian_of(settings, fault)
    assembly = _quiet(guardian.settings, settle=guardian.settle)
    try:
        await _look_at_all(assembly)
        node = NodeStatus(
            cgroup=assembly.mode.value,
            systemd=await _systemd(assembly),
            mode=guardian.mode,
            daemon=guardian.daemon,
            trouble=guardian.trouble,
        )
        guard = assembly.guard
        scope = find(guard, name)
        found = explanation(guard.parts, scope, node, settings.paths)
        last = await _last_writer(settings, scope.target.unit) if guardian.daemon == "running" else None
        return replace(
            found,
            container=noted(found.container, guardian.paused),
            declares=guardian.settings.guard.declare,
            last_writer=last,
        )
    finally:
        await assembly.close()


async def _last_writer(settings: Settings, unit: str) -> Optional[LastWriter]:
    """Ask the daemon, which alone remembers."""
    try:
        return await control.last_writer(Path(settings.paths.run), unit)
    except GpuguardError:  # one of another version, or that has not seen the scope yet: unknown
        return None


async def repair(
    settings: Settings, names: Sequence[str], *, dry_run: bool, fault: Optional[ConfigError] = None
) -> RepairReport:
    """Repair once, now. A running daemon does it itself. Raises GpuguardError; `fault`: as for look."""
    run = Path(settings.paths.run)
    if dry_run:
        guardian = await guardian_of(settings, fault)
        return await _repair(_quiet(guardian.settings, settle=guardian.settle), names, dry_run=True, settle=0.0)
    if await control.daemon_runs(run) is not False:
        return await control.repair(run, names)
    if fault is not None:
        raise fault
    with guard_lock(run, _PATIENCE):
        assembly = _quiet(settings, settle=settings.guard.settle, writable=True)
        return await _repair(assembly, names, dry_run=False, settle=settings.guard.settle)


async def release(
    settings: Settings, name: str, devices: Sequence[str], *, fault: Optional[ConfigError] = None
) -> ReleaseReport:
    """Forget that a container is entitled to devices. A running daemon does it itself.

    Raises GpuguardError; `fault`: as for look.
    """
    run = Path(settings.paths.run)
    if await control.daemon_runs(run) is not False:
        return await control.release(run, name, devices)
    if fault is not None:
        raise fault
    with guard_lock(run, _PATIENCE):
        # What this one look learns stays provisional: it may have fallen into a rewrite of the list.
        assembly = _quiet(settings, settle=settings.guard.settle, writable=True)
        try:
            await _look_at_all(assembly)
            return verbs.release(assembly.guard, assembly.host, name, devices)
        finally:
            await assembly.close()


async def _repair(assembly: Assembly, names: Sequence[str], *, dry_run: bool, settle: float) -> RepairReport:
    """Look at all without touching anything, and only then repair what was named."""
    guard = assembly.guard
    try:
        await _look_at_all(assembly)
        if any(scope.settling for scope in guard.scopes.values()):
            await asyncio.sleep(settle)
            await _look_at_all(assembly)
        guard.policy = replace(guard.policy, enforce=not dry_run, shield=False)  # nobody would keep it
        return await verbs.repair(assembly.guard, assembly.watch, names, dry_run=dry_run)
    finally:
        await assembly.close()


async def _look_at_all(assembly: Assembly) -> None:
    parts = assembly.guard.parts
    for control_group, _ in parts.devices.units(parts.units.wanted, parts.candidates.known):
        assembly.watch.want(control_group, fresh=True)
    await assembly.watch.idle()
    unread = [scope.record.trouble for scope in assembly.guard.scopes.values() if scope.record.trouble is not None]
    if unread and os.geteuid() != 0:  # what was lost before anybody looked is told by those files alone
        raise RuntimeFileError(f"{unread[0]}; are you root?")


async def _systemd(assembly: Assembly) -> Optional[int]:
    try:
        return await assembly.guard.parts.observer.ask_version()
    except BusError:
        return None


def _quiet(settings: Settings, *, settle: float, writable: bool = False) -> Assembly:
    """Build a guard that tells nobody: the command prints what came of it."""
    return assemble(settings, Metrics(), silent(), enforce=False, settle=settle, writable=writable)
