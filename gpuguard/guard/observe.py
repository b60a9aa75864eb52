"""Read what systemd would write for a scope, and bring it to the form that the judge compares."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Optional

from gpuguard.errors import BusError, GpuguardError, NoSuchUnitError
from gpuguard.guard.mend import Target
from gpuguard.kernel.procfs import Host
from gpuguard.model.deviceallow import NodeFacts, declared_rules, paths_to_look_up, resolve
from gpuguard.model.fragment import parse_fragments
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.observation import Declared
from gpuguard.model.refusal import Refusal
from gpuguard.model.rule import Rule
from gpuguard.model.unit import DeviceAllow, DevicePolicy, UnitProperties
from gpuguard.systemd.link import Link
from gpuguard.systemd.unit_files import texts
from gpuguard.systemd.unit_stamp import Stamp, UnitStamps

_MICROSECOND = 1e-6
_GATED = "its devices are gated by BPFProgram="


@dataclass(frozen=True)
class SystemdView:
    """What systemd has to say about one scope. `declared` is None when that cannot be told.

    `refusal` says why systemd must not be told anything about this unit; `started` is in seconds of
    CLOCK_MONOTONIC; `trouble` says why something cannot be told; `stamp` is that of the files. Not `managed`: systemd
    never writes there, and was not asked.
    """

    declared: Optional[Declared] = None
    invocation: str = ""
    started: Optional[float] = None
    refusal: Optional[str] = None
    trouble: Optional[str] = None
    stamp: Stamp = ()
    managed: bool = True


class SystemdObserver:
    """Asks systemd about units, and knows what its answers depend on: its version, /proc/devices, nodes, files.

    `root` is where the host's root directory is seen: a reload reads the unit files below it.
    """

    def __init__(self, link: Link, host: Host, root: str = "/") -> None:
        self._link = link
        self._host = host
        self._root = root
        self.stamps = UnitStamps(root)
        self.version = 0

    async def ask_version(self) -> int:
        """Return systemd's major version. Raises BusError."""
        self.version = await (await self._link.manager()).version()
        return self.version

    async def view(self, unit: str, control_group: str) -> SystemdView:
        """Ask systemd about one unit, by its own control group. What cannot be told is None; raises nothing."""
        stamp = self.stamps.stamp(unit)
        try:
            manager = await self._link.manager()
            if not self.version:
                await self.ask_version()
            properties = await manager.unit(unit)
        except NoSuchUnitError:
            return SystemdView(refusal="systemd has no such unit", trouble="systemd has no such unit")
        except BusError as error:
            return SystemdView(trouble=f"systemd cannot be asked: {error}")
        if properties.control_group != control_group:  # a namesake: what is declared for it says nothing about this one
            elsewhere = f"systemd has the unit {unit} at {properties.control_group or 'no control group'}"
            return SystemdView(refusal=elsewhere, trouble=elsewhere)
        declared, trouble = None, None
        try:
            declared = self._declared(properties)
        except GpuguardError as error:
            trouble = f"what a reload would make of it cannot be told: {error}"
        return SystemdView(
            declared=declared,
            invocation=properties.invocation,
            started=properties.started_usec * _MICROSECOND or None,
            refusal=_refusal(properties),
            trouble=trouble,
            stamp=stamp,
        )

    def _declared(self, properties: UnitProperties) -> Declared:
        if properties.bpf_device_program:
            # systemd attaches that program again, also beside one that a hook has put in its place (seen on 252).
            raise GpuguardError(_GATED)
        # Whatever NeedDaemonReload says: it stays "no" for a drop-in in a directory that systemd does not know yet.
        files = texts(properties.fragment, properties.name, self._root)
        policy, entries = parse_fragments(properties.name, (file.text for file in files))
        facts = self._facts(entries + properties.device_allow)
        disk = declared_rules(policy, entries, facts)
        memory = declared_rules(properties.policy, properties.device_allow, facts)
        return Declared(memory, disk, properties.policy, properties.device_allow)

    def resolved(self, entries: Iterable[DeviceAllow]) -> list[tuple[DeviceAllow, frozenset[Rule]]]:
        """Return each entry with the rules that systemd writes for it. Raises CgroupUnreadableError."""
        entries = tuple(entries)
        facts = self._facts(entries)
        return [(entry, resolve(entry, facts)) for entry in entries]

    def _facts(self, entries: Iterable[DeviceAllow]) -> NodeFacts:
        numbers = {}
        for path in paths_to_look_up(entries, self.version):
            number = self._host.number(path)
            if number is not None:
                numbers[path] = DeviceNumber(*number)
        return NodeFacts(self.version, Majors.parse(self._host.devices()), numbers)


def unmanaged(target: Target) -> SystemdView:
    """Return what there is to say of a container that systemd's rewrites do not reach."""
    reason = Refusal.UNMANAGED if target.unit_group is None else Refusal.BELOW
    return SystemdView(refusal=reason.value, managed=False)


def _refusal(unit: UnitProperties) -> Optional[str]:
    """Say why a unit must not be given a DeviceAllow entry, None when it may be."""
    if unit.bpf_device_program:
        return Refusal.GATED.value
    if unit.policy is DevicePolicy.AUTO and not unit.device_allow:
        return Refusal.UNFILTERED.value
    if not unit.transient:
        return Refusal.NOT_TRANSIENT.value
    if not unit.name.endswith(".scope"):
        return Refusal.RESTARTABLE.value
    return None
