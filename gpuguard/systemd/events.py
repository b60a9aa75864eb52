"""What the systemd sources report. Nothing here decides anything; each event means "look, now"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Optional, Union

from gpuguard.source import SourceDown as SourceDown  # noqa: PLC0414 -- a re-export, as type checkers know it
from gpuguard.source import SourceUp as SourceUp  # noqa: PLC0414

# The names of the sources, as SourceUp and SourceDown give them.
SIGNALS = "signals"
UNITS = "units"
MONITOR = "monitor"


@dataclass(frozen=True)
class Reloading:
    """A daemon-reload or daemon-reexec begins (True), or has ended and its device rules are written (False)."""

    active: bool


@dataclass(frozen=True)
class ManagerReplaced:
    """Another process now answers for systemd on the bus: a daemon-reexec, or a restart of the bus."""


@dataclass(frozen=True)
class UnitNew:
    """A unit was loaded. That every unit is during a reload is not reported."""

    name: str


@dataclass(frozen=True)
class UnitRemoved:
    """A unit was unloaded. That every unit is during a reload is not reported."""

    name: str


@dataclass(frozen=True)
class Called:
    """Somebody called one of systemd's methods that rewrite device rules, over the system bus.

    `unit` and `properties` are what the call names, as far as it could be read. `pid` is None when the caller
    had left the bus before it could be asked for.
    """

    member: str
    unit: Optional[str]
    properties: tuple[str, ...]
    sender: str
    pid: Optional[int]


Event = Union[Reloading, ManagerReplaced, UnitNew, UnitRemoved, SourceUp, SourceDown, Called]
OnEvent = Callable[[Event], None]
