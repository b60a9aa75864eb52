"""A systemd unit as far as its device permissions go."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpuguard.model.rule import Access


class DevicePolicy(str, enum.Enum):
    """systemd.resource-control(5), DevicePolicy=."""

    AUTO = "auto"
    CLOSED = "closed"
    STRICT = "strict"


@dataclass(frozen=True)
class DeviceAllow:
    """One DeviceAllow= entry: a path such as "/dev/char/195:0" or a group such as "char-pts"."""

    path: str
    access: Access

    def __str__(self) -> str:
        """Return it as a unit file spells it."""
        return f"{self.path} {self.access.letters()}"


@dataclass(frozen=True)
class UnitProperties:
    """What systemd says of one unit, read at one moment.

    `invocation` is the invocation id in hex, "" when there is none. `started_usec` is
    ActiveEnterTimestampMonotonic: microseconds of CLOCK_MONOTONIC, 0 when never active.
    """

    name: str
    control_group: str
    transient: bool
    invocation: str
    policy: DevicePolicy
    device_allow: tuple[DeviceAllow, ...]
    bpf_device_program: bool
    fragment: str
    started_usec: int
