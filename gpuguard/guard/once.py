"""The guard's work done once, for the commands: with the daemon where it must, without it where it can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from gpuguard.config import Settings, parse
from gpuguard.errors import BusError, ConfigError, GpuguardError
from gpuguard.guard import control, verbs
from gpuguard.guard.build import Assembly, assemble
from gpuguard.guard.explain import explanation
from gpuguard.guard.lock import guard_lock
from gpuguard.guard.statuses import statuses
from gpuguard.kernel.mode import detect
from gpuguard.model.explanation import Explanation
from gpuguard.model.reports import ReleaseReport, RepairReport
from gpuguard.model.status import NodeStatus
from gpuguard.report.log import silent
from gpuguard.report.metrics import Metrics

_PATIENCE = 10.0


@dataclass(frozen=True)
class _Guardian:
    """What a command knows of the daemon: "running", "stopped" or "unknown", its mode and the settings in force."""

    daemon: str
    mode: str
    settings: Settings
    trouble: Optional[str] = None

    @property
    def settle(self) -> float:
        """Without a daemon nobody else has learnt anything: what is in force now counts as given."""
        return 0.0 if self.daemon == "stopped" else self.settings.guard.settle


async def look(settings: Settings, fault: Optional[ConfigError] = None) -> NodeStatus:
    """Look at the node once; changes nothing, needs no daemon. Raises GpuguardError.

    `fault`: the settings are only what remains of a bad file; those of a running daemon make up for it.
    """
    guardian = await _guardian(settings, fault)
    assembly = _quiet(guardian.settings, settle=guardian.settle)
    try:
        await _look_at_all(assembly)
        return NodeStatus(
            cgroup=detect(Path(settings.paths.cgroup)).value,
            systemd=await _systemd(assembly),
            mode=guardian.mode,
            daemon=guardian.daemon,
            containers=statuses(assembly.guard.scopes.values(), assembly.guard.parts.guarded.node_of),
            trouble=guardian.trouble,
        )
    finally:
        await assembly.close()


async def explain(settings: Settings, name: str, fault: Optional[ConfigError] = None) -> Explanation:
    """Explain one container; changes nothing, needs no daemon. Raises GpuguardError; `fault`: as for look."""
    guardian = await _guardian(settings, fault)
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
        found = explanation(guard.parts, verbs.find(guard, name), node, settings.paths)
        return replace(found, declares=guardian.settings.guard.declare)
    finally:
        await assembly.close()


async def repair(
    settings: Settings, names: Sequence[str], *, dry_run: bool, fault: Optional[ConfigError] = None
) -> RepairReport:
    """Repair once, now. A running daemon does it itself. Raises GpuguardError; `fault`: as for look."""
    run = Path(settings.paths.run)
    if dry_run:
        guardian = await _guardian(settings, fault)
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


async def _guardian(settings: Settings, fault: Optional[ConfigError]) -> _Guardian:
    """Ask the daemon, if one runs, what it goes by. Raises `fault` when nobody makes up for the bad file."""
    run = Path(settings.paths.run)
    runs = await control.daemon_runs(run)
    word, trouble = {True: "running", False: "stopped", None: "unknown"}[runs], None
    if runs:
        try:
            report = await control.daemon(run)
            own = parse(report.settings.encode(), "the daemon's settings")
        except GpuguardError as error:  # it hangs, or is of another version
            word, trouble = "unknown", str(error)
        else:
            # Where the node's files are seen from here may be another place than from there.
            own = replace(own, paths=settings.paths)
            return _Guardian(word, report.mode, own, report.trouble if fault is None else str(fault))
    if fault is not None:
        raise fault
    return _Guardian(word, settings.guard.mode, settings, trouble)


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
    for control_group, _ in parts.devices.units(parts.units.wanted):
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
