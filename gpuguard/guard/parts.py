"""What the guard works with, and what it may do."""

from __future__ import annotations

from dataclasses import dataclass

from gpuguard.guard.candidates import Candidates
from gpuguard.guard.cause import Causes
from gpuguard.guard.devices import GuardedDevices
from gpuguard.guard.ledger import Ledger
from gpuguard.guard.mend import Mender
from gpuguard.guard.observe import SystemdObserver
from gpuguard.guard.record import Recorder
from gpuguard.guard.records import Records
from gpuguard.guard.sentinel import Sentinel
from gpuguard.guard.units import Units
from gpuguard.kernel.devices import DeviceControl
from gpuguard.kernel.processes import Processes
from gpuguard.kernel.start_phase import StartPhase


@dataclass(frozen=True)
class Policy:
    """What the guard may do. Times in seconds.

    `enforce`: write at all. `protect`: declare before the first loss, too. `shield`: keep the shield for good (v1).
    """

    enforce: bool
    protect: bool
    settle: float
    max_repairs: int
    window: float
    pause: float
    shield: bool = False


@dataclass(frozen=True)
class Parts:
    """What the guard works with."""

    devices: DeviceControl
    units: Units
    candidates: Candidates
    observer: SystemdObserver
    mender: Mender
    guarded: GuardedDevices
    ledger: Ledger
    recorder: Recorder
    causes: Causes
    sentinel: Sentinel
    start_phase: StartPhase
    processes: Processes
    records: Records
