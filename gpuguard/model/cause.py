"""Why a container's device list changed, who wrote it, and for whom. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from gpuguard.model.process import INIT, Process

# A writer that is known by what systemd itself has told, without a look at its process.
SYSTEMD = Process(INIT, "systemd")


@dataclass(frozen=True)
class Cause:
    """Why a list changed, in the words of the metric: reload, reexec, property, runtime, manual or unknown.

    `writer` is None when it is not known. `requester` is whom systemd wrote for, else who the writer itself is, and the
    ancestors of that process, the nearest first. `properties` are those that were set. `since` is the earliest
    moment at which the list can have changed, in seconds of CLOCK_MONOTONIC.
    """

    cause: str = "unknown"
    writer: Optional[Process] = None
    requester: tuple[Process, ...] = ()
    properties: tuple[str, ...] = ()
    since: Optional[float] = None

    @property
    def program(self) -> Optional[str]:
        """The name of the writer's program, None where it is not known."""
        return self.writer.program if self.writer is not None else None
