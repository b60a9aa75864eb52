"""Put the guard together for one set of settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from structlog.typing import FilteringBoundLogger

from gpuguard.config import Settings
from gpuguard.guard.candidates import Candidates
from gpuguard.guard.cause import Causes
from gpuguard.guard.devices import GuardedDevices
from gpuguard.guard.guard import Guard
from gpuguard.guard.ledger import Ledger
from gpuguard.guard.mend import Mender
from gpuguard.guard.node_records import NodeRecords
from gpuguard.guard.observe import SystemdObserver
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.record import Recorder
from gpuguard.guard.sentinel import Sentinel
from gpuguard.guard.units import Units
from gpuguard.guard.watch import Watch
from gpuguard.kernel.devices import DeviceControl
from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.kernel.devices_v2 import DevicesV2
from gpuguard.kernel.mode import CgroupMode, detect
from gpuguard.kernel.processes import Processes
from gpuguard.kernel.procfs import Host
from gpuguard.kernel.start_phase import StartPhase
from gpuguard.model.cause import SYSTEMD
from gpuguard.model.process import INIT
from gpuguard.report.metrics import Metrics
from gpuguard.sentinel.command import command
from gpuguard.systemd.link import Link


@dataclass(frozen=True)
class Assembly:
    """A guard and what it stands on."""

    mode: CgroupMode
    guard: Guard
    watch: Watch
    host: Host
    link: Link
    processes: Processes

    async def close(self) -> None:
        """Stop the looks under way, close the connection and what is kept open."""
        await self.watch.close()
        await self.link.close()
        self.guard.parts.devices.close()
        self.guard.parts.records.close()


def assemble(  # noqa: PLR0913 - each is a fact of its own
    settings: Settings, metrics: Metrics, log: FilteringBoundLogger, *, enforce: bool, settle: float, writable: bool
) -> Assembly:
    """Build a guard that knows the ledger but has not looked at anything; call it inside the running loop.

    `writable`: it may change the ledger. Raises CgroupUnreadableError, LedgerError.
    """
    paths = settings.paths
    host = Host(Path(paths.proc), Path(paths.dev))
    guarded = GuardedDevices(settings.devices, host)
    guarded.refresh()
    link = Link(paths.bus)
    mode = detect(Path(paths.cgroup))
    devices = _devices(mode, Path(paths.cgroup), guarded)
    ledger = Ledger(Path(paths.run), host.boot_id(), writable=writable)
    processes = Processes(Path(paths.proc))
    units = Units(settings.scopes)
    records = NodeRecords(paths, guarded)
    parts = Parts(
        devices=devices,
        units=units,
        candidates=Candidates(units, records.vouches),
        observer=SystemdObserver(link, host, paths.root),
        mender=Mender(devices, link),
        guarded=guarded,
        ledger=ledger,
        recorder=Recorder(metrics, log, guarded.node_of),
        causes=Causes(systemd=processes.read(INIT) or SYSTEMD),
        sentinel=Sentinel(lambda fd: _sentinel(settings, mode, fd)),
        start_phase=StartPhase(_hierarchy(mode, Path(paths.cgroup)), Path(paths.proc)),
        processes=processes,
        records=records,
    )
    policy = Policy(
        enforce=enforce,
        protect=settings.guard.declare,
        settle=settle,
        max_repairs=settings.backoff.max_repairs,
        window=settings.backoff.window,
        pause=settings.backoff.pause,
        shield=settings.guard.shield and mode is CgroupMode.V1,
    )
    guard = Guard(parts, policy)
    guard.remember()
    return Assembly(mode, guard, Watch(guard.look), host, link, processes)


def _sentinel(settings: Settings, mode: CgroupMode, fd: int) -> list[str]:
    backoff, paths = settings.backoff, settings.paths
    return command(
        fd,
        mode=mode.value,
        cgroup=paths.cgroup,
        proc=paths.proc,
        max_repairs=backoff.max_repairs,
        window=backoff.window,
        pause=backoff.pause,
    )


def _devices(mode: CgroupMode, cgroup: Path, guarded: GuardedDevices) -> DeviceControl:
    hierarchy = _hierarchy(mode, cgroup)
    return DevicesV1(hierarchy) if mode is CgroupMode.V1 else DevicesV2(hierarchy, guarded.candidates)


def _hierarchy(mode: CgroupMode, cgroup: Path) -> Path:
    return cgroup / "devices" if mode is CgroupMode.V1 else cgroup
