"""Carry out a plan, and read back what it did: only what the kernel's list says counts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from gpuguard.errors import (
    BusError,
    BusTimeoutError,
    BusUnavailableError,
    CgroupGoneError,
    CgroupUnreadableError,
    GpuguardError,
)
from gpuguard.kernel.devices import DeviceControl
from gpuguard.model.rule import Rule
from gpuguard.model.unit import DeviceAllow
from gpuguard.report.metrics import Method, Result
from gpuguard.systemd.link import Link

# A read can fall between systemd's deny-all and its allows: 66 to 198 µs were measured for those.
_LOOKS = (0.0, 0.002, 0.004, 0.008, 0.016)
_PATIENCE = 5.0


@dataclass(frozen=True)
class Target:
    """The container that is written: its control group, and the inode that this must have.

    `unit_group` is the control group of `unit`, which is another one where a service holds the container; None where
    systemd knows no unit: then `unit` is but a name for people.
    """

    unit: str
    control_group: str
    inode: int
    unit_group: Optional[str]

    @property
    def is_unit(self) -> bool:
        """Whether the control group is that of a unit, and not one below it or beside all units."""
        return self.unit_group == self.control_group

    def managed(self, *, writable: bool) -> bool:
        """Whether systemd's rewrites reach it. `writable`: on cgroup v1, where they fail if there are groups below."""
        return self.is_unit or (self.unit_group is not None and not writable)


@dataclass(frozen=True)
class Deed:
    """One thing that was done, and how long it took, in seconds.

    `error` is None when the kernel's list, read back, says that it worked. Without an answer of
    systemd it is unknown what it did or will do.
    """

    method: Method
    seconds: float
    error: Optional[str] = None
    answered: bool = True
    refused: bool = False

    @property
    def result(self) -> Result:
        """The word for the metric: ok or failed."""
        return "ok" if self.error is None else "failed"


class Mender:
    """Writes rules back and declares them to systemd. One deed at a time per scope: the caller sees to it."""

    def __init__(self, devices: DeviceControl, link: Link) -> None:
        self._devices = devices
        self._link = link

    async def write(self, target: Target, rules: Iterable[Rule]) -> Deed:
        """Write lost rules into the kernel's list. Raises CgroupGoneError."""
        begin = time.monotonic()
        rules = tuple(rules)
        refusals = [refusal for refusal in (self._allow(target, rule) for rule in rules) if refusal]
        missing = await self._missing(target, rules)
        if not missing:
            return Deed("write", time.monotonic() - begin)
        why = "; ".join(refusals) or f"{target.control_group}: written, but not in force: {_text(missing)}"
        return Deed("write", time.monotonic() - begin, why)

    async def declare(
        self, target: Target, entries: tuple[DeviceAllow, ...], lost: Iterable[Rule] = (), *, keep: bool = False
    ) -> Deed:
        """Make systemd remember entries, under the shield: its rewrite of the list then takes nothing.

        What was in force before must be so afterwards, and what was `lost` as well.
        The shield goes only after the answer and the read-back. While an answer is outstanding (no
        bus, no answer in time, cancelled) it stays; remove_left_shield() takes it away some time. With
        `keep` it stays in any case: it is there for good.
        Raises CgroupGoneError.
        """
        begin = time.monotonic()
        before = self._devices.read(target.control_group)
        self._devices.shield(target.control_group, target.inode)
        error, refused = None, False
        try:
            manager = await self._link.manager()
            await manager.allow_devices(target.unit, entries)
        except (BusTimeoutError, BusUnavailableError) as unknown:
            why = f"{target.unit}: systemd's answer is outstanding: {unknown}"
            return Deed("declare", time.monotonic() - begin, why, answered=False)
        except BusError as refusal:
            error, refused = f"{target.unit}: systemd refuses: {refusal}", True
        missing = await self._missing(target, before.rules.rules.union(lost))
        try:
            if not keep:
                self._devices.unshield(target.control_group, target.inode)
        except CgroupUnreadableError as left:  # somebody has put something in it
            error = error or str(left)
        if missing:
            error = f"{target.control_group}: not in force after declaring: {_text(missing)}"
        return Deed("declare", time.monotonic() - begin, error, refused=refused)

    async def remove_left_shield(self, target: Target) -> bool:
        """Remove a shield that nobody holds up any more; return whether there was one.

        A declaration may still be under way in systemd: the shield stays until it has answered
        something later. Raises BusError, CgroupGoneError.
        """
        if not self._devices.shielded(target.control_group):
            return False
        manager = await self._link.manager()
        if not await manager.settled_after(_PATIENCE):
            return False
        return self._devices.unshield(target.control_group, target.inode)

    def _allow(self, target: Target, rule: Rule) -> Optional[str]:
        try:
            self._devices.allow(target.control_group, target.inode, rule)
        except CgroupGoneError:
            raise
        except GpuguardError as error:
            return str(error)
        return None

    async def _missing(self, target: Target, wanted: Iterable[Rule]) -> frozenset[Rule]:
        """Return what of `wanted` is not in force in several looks, since one look can be torn."""
        missing = frozenset(wanted)
        for pause in _LOOKS:
            if pause:
                await asyncio.sleep(pause)
            missing = self._devices.read(target.control_group).rules.missing(missing)
            if not missing:
                break
        return missing


def _text(rules: Iterable[Rule]) -> str:
    return ", ".join(str(rule) for rule in sorted(rules, key=lambda rule: rule.sort_key))
