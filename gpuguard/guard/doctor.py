"""Examines a node for `gpuguard doctor`: asks the daemon, looks at the containers, reads what the node is like."""

from __future__ import annotations

import asyncio
import os
import platform
from pathlib import Path
from typing import Optional

from gpuguard import __version__
from gpuguard.config import Settings
from gpuguard.errors import CgroupUnreadableError, ConfigError, GpuguardError
from gpuguard.guard import once
from gpuguard.guard.devices import GuardedDevices
from gpuguard.guard.effect import without_effect
from gpuguard.guard.guardian import Guardian, guardian_of
from gpuguard.kernel.procfs import Host
from gpuguard.kernel.realtime import empty_budgets
from gpuguard.model.doctor import Examination, Links, Versions
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import CHAR
from gpuguard.model.status import NodeStatus


async def examine(settings: Settings, fault: Optional[ConfigError]) -> Examination:
    """Examine the node; changes nothing, and raises nothing: what cannot be found out is told as such.

    `fault`: the settings are only what remains of a bad file.
    """
    guardian = await _guardian(settings, fault)
    node, trouble = await _look(settings, guardian, fault)
    report = guardian.report
    return Examination(
        versions=Versions(
            gpuguard=__version__,
            python=platform.python_version(),
            kernel=os.uname().release,
            daemon=None if report is None else report.version,
            systemd=None if node is None else node.systemd,
        ),
        node=node,
        trouble=trouble,
        sources=None if report is None or not report.sources else report.sources,
        standing=None if report is None else report.standing,
        unserved=() if report is None else report.unserved,
        budgets=() if report is None else await asyncio.to_thread(_budgets, settings, report.pid),
        links=await asyncio.to_thread(_links, guardian.settings),
        fault=None if fault is None else str(fault),
        without_effect=() if node is None else tuple(without_effect(guardian.settings, node.cgroup)),
        root=os.geteuid() == 0,
    )


async def _guardian(settings: Settings, fault: Optional[ConfigError]) -> Guardian:
    try:
        return await guardian_of(settings, fault)
    except ConfigError:  # nobody makes up for the bad file: what remains of it must do
        return await guardian_of(settings, None)


async def _look(
    settings: Settings, guardian: Guardian, fault: Optional[ConfigError]
) -> tuple[Optional[NodeStatus], Optional[str]]:
    """Look at the node; say why not where that cannot be."""
    try:
        return await once.look(settings, fault if guardian.report is not None else None), None
    except GpuguardError as error:
        return None, str(error)


def _links(settings: Settings) -> Optional[Links]:
    host = Host(Path(settings.paths.proc), Path(settings.paths.dev))
    guarded = GuardedDevices(settings.devices, host)
    try:
        guarded.refresh()
    except CgroupUnreadableError:
        return None
    nodes = guarded.nodes
    return Links(tuple(nodes), tuple(path for path, number in nodes.items() if not _linked(host, number)))


def _budgets(settings: Settings, pid: Optional[int]) -> tuple[str, ...]:
    return () if pid is None else empty_budgets(Path(settings.paths.proc), Path(settings.paths.cgroup), pid)


def _linked(host: Host, number: DeviceNumber) -> bool:
    word = "char" if number.kind == CHAR else "block"
    return host.number(f"/dev/{word}/{number.major}:{number.minor}") == number
