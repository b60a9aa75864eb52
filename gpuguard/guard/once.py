"""The guard's work done once, for the commands: with the daemon where it must, without it where it can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from gpuguard.config import Settings
from gpuguard.errors import BusError
from gpuguard.guard import control, verbs
from gpuguard.guard.build import Assembly, assemble
from gpuguard.guard.lock import guard_lock
from gpuguard.guard.statuses import statuses
from gpuguard.kernel.mode import detect
from gpuguard.model.reports import ReleaseReport, RepairReport
from gpuguard.model.status import NodeStatus
from gpuguard.report.log import silent
from gpuguard.report.metrics import Metrics

_PATIENCE = 10.0


async def look(settings: Settings) -> NodeStatus:
    """Look at the node once; changes nothing, needs no daemon. Raises GpuguardError."""
    running = await control.daemon_runs(Path(settings.paths.run))
    # Without a daemon nobody else has learnt anything: what is in force now counts as given.
    assembly = _quiet(settings, settle=settings.guard.settle if running else 0.0)
    try:
        await _look_at_all(assembly)
        return NodeStatus(
            cgroup=detect(Path(settings.paths.cgroup)).value,
            systemd=await _systemd(assembly),
            mode=settings.guard.mode,
            daemon="running" if running else "stopped",
            containers=statuses(assembly.guard.scopes.values(), assembly.guard.parts.guarded.node_of),
        )
    finally:
        await assembly.close()


async def repair(settings: Settings, names: Sequence[str], *, dry_run: bool) -> RepairReport:
    """Repair once, now. A running daemon does it itself. Raises GpuguardError."""
    run = Path(settings.paths.run)
    running = await control.daemon_runs(run)
    if running and not dry_run:
        return await control.repair(run, names)
    if dry_run:
        assembly = _quiet(settings, settle=settings.guard.settle if running else 0.0)
        return await _repair(assembly, names, dry_run=True, settle=0.0)
    with guard_lock(run, _PATIENCE):
        assembly = _quiet(settings, settle=settings.guard.settle, writable=True)
        return await _repair(assembly, names, dry_run=False, settle=settings.guard.settle)


async def release(settings: Settings, name: str, devices: Sequence[str]) -> ReleaseReport:
    """Forget that a container is entitled to devices. A running daemon does it itself. Raises GpuguardError."""
    run = Path(settings.paths.run)
    if await control.daemon_runs(run):
        return await control.release(run, name, devices)
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
        guard.policy = replace(guard.policy, enforce=not dry_run)
        return await verbs.repair(assembly.guard, assembly.watch, names, dry_run=dry_run)
    finally:
        await assembly.close()


async def _look_at_all(assembly: Assembly) -> None:
    parts = assembly.guard.parts
    for control_group in parts.devices.units(parts.units.wanted):
        assembly.watch.want(control_group, fresh=True)
    await assembly.watch.idle()


async def _systemd(assembly: Assembly) -> Optional[int]:
    try:
        return await assembly.guard.parts.observer.ask_version()
    except BusError:
        return None


def _quiet(settings: Settings, *, settle: float, writable: bool = False) -> Assembly:
    """Build a guard that tells nobody: the command prints what came of it."""
    return assemble(settings, Metrics(), silent(), enforce=False, settle=settle, writable=writable)
