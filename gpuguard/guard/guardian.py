"""What a command knows of the daemon, and the settings that it goes by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from gpuguard.config import Settings, parse
from gpuguard.errors import ConfigError, GpuguardError
from gpuguard.guard import control
from gpuguard.model.reports import DaemonReport


@dataclass(frozen=True)
class Guardian:
    """What a command knows of the daemon: "running", "stopped" or "unknown", its mode and the settings in force.

    `report` is all that a running one tells of itself.
    """

    daemon: str
    mode: str
    settings: Settings
    trouble: Optional[str] = None
    report: Optional[DaemonReport] = None

    @property
    def paused(self) -> Mapping[str, float]:
        """The control groups that it does not repair for now, and until when."""
        return self.report.paused if self.report is not None else {}

    @property
    def settle(self) -> float:
        """Without a daemon nobody else has learnt anything: what is in force now counts as given."""
        return 0.0 if self.daemon == "stopped" else self.settings.guard.settle


async def guardian_of(settings: Settings, fault: Optional[ConfigError]) -> Guardian:
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
            return Guardian(word, report.mode, own, report.trouble if fault is None else str(fault), report)
    if fault is not None:
        raise fault
    return Guardian(word, settings.guard.mode, settings, trouble)
