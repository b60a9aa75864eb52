"""The fake systemd's deeds: units that start, change, are reloaded and stop, with the signals in systemd's order.

PID 1 does one thing at a time. So does this: its caller runs one deed after the other, never two at once.
"""

from __future__ import annotations

import asyncio
import os
import re
import stat
import time
import uuid
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Callable, Optional, Protocol

from dbus_next.signature import Variant

from tests.lab.sim import unitfile
from tests.lab.sim.faults import INVALID_ARGS, NO_SUCH_UNIT, UNIT_EXISTS, BusFault
from tests.lab.sim.tree import Tree
from tests.lab.sim.unit import RESOURCES, Unit, monotonic_usec

SYSTEMD = "org.freedesktop.systemd1"
MANAGER_PATH = "/org/freedesktop/systemd1"
MANAGER = f"{SYSTEMD}.Manager"
PROPERTIES = "org.freedesktop.DBus.Properties"

_REALIZING = {"DeviceAllow", "DevicePolicy", *RESOURCES}
_VALID_NAME = re.compile(
    r"[A-Za-z0-9:_.\\@-]+\.(scope|service|slice|socket|timer|mount|target|device|swap|path|automount)"
)


class Outlet(Protocol):
    """Where signals go."""

    async def emit(self, path: str, interface: str, member: str, signature: str, body: list[Any]) -> None:
        """Send one signal, if anybody has subscribed."""


class Manager:
    """All units of the fake systemd.

    `gap` is the time in s between systemd's deny-all and its first allow on v1.
    """

    def __init__(self, root: Path, tree: Tree, outlet: Outlet) -> None:
        self.units: dict[str, Unit] = {}
        self.known_directories: set[Path] = set()
        self.gap = 0.0
        self._root = root
        self._tree = tree
        self._outlet = outlet
        self._jobs = 0
        self._later: list[Callable[[], Awaitable[None]]] = []
        for name in ("-.slice", "system.slice", "init.scope"):
            self.units[name] = self._activated(Unit(name, slice="-.slice"))
            self._tree.make(self.units[name].group)

    def unit(self, name: str) -> Unit:
        """Return a loaded unit. Raises BusFault."""
        if not _VALID_NAME.fullmatch(name):
            raise BusFault(INVALID_ARGS, f"Unit name {name} is not valid.")
        if name not in self.units:
            raise BusFault(NO_SUCH_UNIT, f"Unit {name} not loaded.")
        return self.units[name]

    async def add_service(self, name: str) -> None:
        """Start a service that has no device settings: it is there to swell the storm of a reload."""
        unit = self.units[name] = self._activated(Unit(name))
        self._realize_groups(unit)
        await self._signal("UnitNew", "so", [name, unit_path(name)])

    async def start_transient(self, name: str, properties: Sequence[tuple[str, Variant]]) -> str:
        """Make a scope and return its job's path, which is told before the job is done. Raises BusFault."""
        if name in self.units:
            raise BusFault(UNIT_EXISTS, f"Unit {name} was already loaded or has a fragment file.")
        unit = Unit(name, transient=True)
        for key, value in properties:
            unit.check(key, value, starting=True)
        lines: list[tuple[str, str]] = []
        for key, value in properties:
            unit.set(key, value.value)
            lines += unit.lines(key)
        fragment = self._root / unitfile.TRANSIENT / name
        fragment.write_text(unitfile.fragment_text(lines))
        unit.fragment, unit.fragment_ns = str(fragment), time.time_ns()
        self.units[name] = unit
        await self._signal("UnitNew", "so", [name, unit_path(name)])
        job = await self._new_job(name)

        async def finish() -> None:
            await self._changed(unit)
            self._activated(unit)
            self._realize_groups(unit)
            await self._apply(unit)
            await self._changed(unit)
            await self._signal("JobRemoved", "uoss", [*job, name, "done"])
            await self._changed(unit)

        self._later.append(finish)
        return job[1]

    async def set_properties(self, name: str, properties: Sequence[tuple[str, Variant]]) -> None:
        """Set properties of a unit: all or, when one is refused, none. Raises BusFault."""
        if name not in self.units and _VALID_NAME.fullmatch(name):
            self.load_in_vain(name)
            raise BusFault(NO_SUCH_UNIT, f"Unit {name} not found.")
        unit = self.unit(name)
        for key, value in properties:
            unit.check(key, value)
        for key, value in properties:
            unit.set(key, value.value)
            self._write_drop_in(unit, key)
        names = {key for key, _ in properties}
        if names & _REALIZING:
            await self._apply(unit)
        if "Description" in names:
            self._later.append(lambda: self._changed(unit))

    def load_in_vain(self, name: str) -> None:
        """Do what systemd does when it is asked about a unit that is not there: it comes and goes, with signals."""

        async def announce() -> None:
            await self._signal("UnitNew", "so", [name, unit_path(name)])
            await self._signal("UnitRemoved", "so", [name, unit_path(name)])

        self._later.append(announce)

    async def dispatch(self) -> None:
        """Do what systemd does after it has replied."""
        while self._later:
            await self._later.pop(0)()

    async def stop(self, name: str) -> str:
        """Stop a unit and return its job's path, which is told before the job is done. Raises BusFault."""
        unit = self.unit(name)
        await self._changed(unit)
        job = await self._new_job(name)

        async def finish() -> None:
            await self._changed(unit)
            await self._changed(unit)
            unit.active = False
            await self._changed(unit)
            await self._signal("JobRemoved", "uoss", [*job, name, "done"])
            await self._forget(unit)

        self._later.append(finish)
        return job[1]

    async def end(self, name: str) -> None:
        """End a unit, as when its last process dies. Raises BusFault."""
        await self._forget(self.unit(name))

    async def _forget(self, unit: Unit) -> None:
        if unit.group in self._tree:
            self._tree.remove(unit.group)
        unit.active = False
        await self._changed(unit)
        if unit.transient:
            unitfile.forget_transient(self._root, unit.name)
        del self.units[unit.name]
        await self._signal("UnitRemoved", "so", [unit.name, unit_path(unit.name)])

    async def reload(self) -> None:
        """Read all files again and apply them, as `systemctl daemon-reload` makes systemd do."""
        await self.begin_reload()
        await self._reload_and_apply()
        for name in list(self.units):
            await self._signal("UnitNew", "so", [name, unit_path(name)])
        await self._signal("Reloading", "b", [False])

    async def begin_reload(self) -> None:
        """Say that a reload begins, and let go of each unit."""
        await self._signal("Reloading", "b", [True])
        for name in reversed(list(self.units)):
            await self._signal("UnitRemoved", "so", [name, unit_path(name)])

    async def end_reexec(self) -> None:
        """Do a reload's work in the new process, which does not announce units that it inherited."""
        await self._reload_and_apply()
        for unit in list(self.units.values()):
            await self._changed(unit)
        await self._signal("Reloading", "b", [False])

    async def _reload_and_apply(self) -> None:
        self.known_directories = unitfile.drop_in_directories(self._root)
        for unit in self.units.values():
            unit.load(self._root, self.known_directories)
        for unit in list(self.units.values()):
            if unit.kind != "Slice" and unit.name != "init.scope":
                await self._apply(unit)

    async def _apply(self, unit: Unit) -> None:
        """Write the unit's device list, as cgroup_apply_devices does on v1: it ignores refusals."""
        group = unit.group
        proc_devices = (self._root / "proc/devices").read_text()
        for verb, text in unit.devices.writes(self._node_number, proc_devices):
            self._tree.write(group, verb, text, "systemd")
            if verb == "deny" and self.gap:
                self._tree.publish(group)
                await asyncio.sleep(self.gap)
        self._tree.publish(group)

    def _node_number(self, path: str) -> Optional[str]:
        try:
            status = (self._root / path.lstrip("/")).stat()
        except OSError:
            return None
        kind = "c" if stat.S_ISCHR(status.st_mode) else "b" if stat.S_ISBLK(status.st_mode) else None
        return f"{kind} {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if kind else None

    async def _new_job(self, name: str) -> tuple[int, str]:
        self._jobs += 1
        job = f"{MANAGER_PATH}/job/{self._jobs}"
        await self._signal("JobNew", "uos", [self._jobs, job, name])
        return self._jobs, job

    def _activated(self, unit: Unit) -> Unit:
        unit.active = True
        unit.invocation = uuid.uuid4().bytes
        unit.started_usec = monotonic_usec()
        return unit

    def _realize_groups(self, unit: Unit) -> None:
        self._tree.make(unit.group)
        self._tree.set_procs(unit.group, unit.pids)

    def _write_drop_in(self, unit: Unit, key: str) -> None:
        directory = self._root / unitfile.TRANSIENT / f"{unit.name}.d"
        directory.mkdir(exist_ok=True)
        self.known_directories.add(directory)
        path = directory / f"50-{key}.conf"
        path.write_text(unitfile.drop_in_text(unit.lines(key)))
        unit.drop_ins_ns = time.time_ns()
        if str(path) not in unit.drop_ins:
            unit.drop_ins.append(str(path))

    async def _changed(self, unit: Unit) -> None:
        """Send PropertiesChanged as systemd does: first for the type, then for the unit."""
        path = unit_path(unit.name)
        if unit.kind in {"Scope", "Service"}:
            changed = {"Result": Variant("s", "success")}
            await self._outlet.emit(
                path, PROPERTIES, "PropertiesChanged", "sa{sv}as", [f"{SYSTEMD}.{unit.kind}", changed, []]
            )
        now = unit.unit_interface(self._root, self.known_directories)
        changed = {
            key: now[key] for key in ("ActiveState", "SubState", "InvocationID", "ActiveEnterTimestampMonotonic")
        }
        await self._outlet.emit(path, PROPERTIES, "PropertiesChanged", "sa{sv}as", [f"{SYSTEMD}.Unit", changed, []])

    async def _signal(self, member: str, signature: str, body: list[Any]) -> None:
        await self._outlet.emit(MANAGER_PATH, MANAGER, member, signature, body)


def unit_path(name: str) -> str:
    """Return the object path of a unit: all but ASCII letters and digits become _xx (bus_label_escape)."""
    escaped = "".join(
        letter if letter.isascii() and (letter.isalpha() or (letter.isdigit() and place)) else f"_{ord(letter):02x}"
        for place, letter in enumerate(name)
    )
    return f"{MANAGER_PATH}/unit/{escaped}"


def unit_name(path: str) -> Optional[str]:
    """Return the name of the unit that an object path stands for, None when it stands for none."""
    prefix = f"{MANAGER_PATH}/unit/"
    if not path.startswith(prefix):
        return None
    name = re.sub("_([0-9a-f]{2})", lambda code: chr(int(code[1], 16)), path[len(prefix) :])
    return name if _VALID_NAME.fullmatch(name) else None
