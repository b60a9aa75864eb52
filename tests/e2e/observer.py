"""Do something to systemd on the bus and see what comes of it, on a real node and a simulated one alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Optional

from dbus_next.aio.message_bus import MessageBus
from dbus_next.constants import MessageType
from dbus_next.message import Message
from dbus_next.signature import Variant

from tests.lab.sim import connection
from tests.lab.sim.faults import BusFault
from tests.lab.sim.manager import MANAGER, MANAGER_PATH, PROPERTIES, SYSTEMD, unit_path

_DBUS = "org.freedesktop.DBus"
_MATCHES = (
    f"type='signal',sender='{SYSTEMD}'",
    f"type='signal',sender='{_DBUS}',member='NameOwnerChanged',arg0='{SYSTEMD}'",
)
_MANAGER_SIGNALS = {"UnitNew", "UnitRemoved", "JobNew", "JobRemoved"}
_DEADLINE = 30.0


@dataclass(frozen=True)
class Target:
    """One node under test. `root` shows its files.

    `write` takes a group, "allow" or "deny", and a rule. `spawn` starts a process for the scope and returns its
    number on the node; `end` ends the last one.
    """

    address: str
    root: Path
    write: Callable[[str, str, str], None]
    spawn: Callable[[], int]
    end: Callable[[], None]


@dataclass(frozen=True)
class Sight:
    """What one step left behind.

    `reply` is "" or the name of the error. `events` are signals about the scope and about reloads, and the reply
    among them, in the order of arrival. `rules` is devices.list, sorted, None when there is none.
    """

    reply: str
    events: tuple[str, ...]
    rules: Optional[tuple[str, ...]]
    policy: str
    device_allow: tuple[tuple[str, str], ...]
    need_daemon_reload: bool
    drop_ins: tuple[str, ...]


class Observer:
    """A subscribed client that acts on one scope and watches it. `pid` is the scope's process."""

    def __init__(self, bus: MessageBus, target: Target, scope: str) -> None:
        self.target = target
        self.scope = scope
        self.group = f"/system.slice/{scope}"
        self._bus = bus
        self._path = unit_path(scope)
        self.pid = 0
        self._events: list[str] = []
        self._awaited = 0

    @classmethod
    async def start(cls, target: Target, scope: str) -> Observer:
        """Connect, and subscribe to all that systemd says."""
        observer = cls(await connection.connect(target.address), target, scope)
        observer._bus.add_message_handler(observer._note)
        for match in _MATCHES:
            call = Message(
                destination=_DBUS, path="/org/freedesktop/DBus", interface=_DBUS, member="AddMatch", signature="s"
            )
            call.body = [match]
            await connection.call(observer._bus, call)
        await observer.manager("Subscribe")
        return observer

    async def close(self) -> None:
        """Disconnect."""
        await connection.close(self._bus)

    async def see(self, step: Callable[[Observer], Awaitable[object]]) -> Sight:
        """Take one step and return what came of it."""
        self._events.clear()
        reply = ""
        try:
            await step(self)
        except BusFault as fault:
            reply = fault.name
        events = tuple(await self._flush())
        unit, scope = [await self.properties(f"{SYSTEMD}.{kind}") for kind in ("Unit", "Scope")]
        await self._flush()
        return Sight(
            reply=reply,
            events=events,
            rules=self._rules(),
            policy=scope["DevicePolicy"].value,
            device_allow=tuple((path, access) for path, access in scope["DeviceAllow"].value),
            need_daemon_reload=unit["NeedDaemonReload"].value,
            drop_ins=tuple(Path(path).name for path in unit["DropInPaths"].value),
        )

    async def manager(self, member: str, signature: str = "", *body: Any) -> list[Any]:  # noqa: ANN401  # as the bus
        """Call systemd's Manager. Raises BusFault for an error reply."""
        return await self._call(connection.manager_call(member, signature, body))

    async def set(self, *properties: tuple[str, Variant]) -> None:
        """Set properties of the scope. Raises BusFault when systemd refuses."""
        await self.set_on(self.scope, *properties)

    async def set_on(self, unit: str, *properties: tuple[str, Variant]) -> None:
        """Set properties of another unit. Raises BusFault when systemd refuses."""
        runtime = True
        await self.manager("SetUnitProperties", "sba(sv)", unit, runtime, [list(pair) for pair in properties])

    async def properties(self, interface: str, path: str = "") -> dict[str, Variant]:
        """Read all properties of the scope or another object. Raises BusFault."""
        call = Message(destination=SYSTEMD, path=path or self._path, interface=PROPERTIES, member="GetAll")
        call.signature, call.body = "s", [interface]
        [found] = await self._call(call)
        return dict(found)

    async def _call(self, message: Message) -> list[Any]:
        message.serial = self._awaited = self._bus.next_serial()
        return await connection.call(self._bus, message)

    async def _flush(self) -> list[str]:
        """Wait for the signals that are on their way: PID 1 sends those it has before it answers the next call."""
        await self.manager("GetUnit", "s", "init.scope")
        return self._events[:-1]

    async def until(self, event: str) -> None:
        """Wait for a signal that no reply waits for."""
        deadline = time.monotonic() + _DEADLINE
        while event not in self._events:
            assert time.monotonic() < deadline, f"waited for {event} in vain, saw {self._events}"
            await asyncio.sleep(0.01)

    def hook(self, *rules: str, verb: str = "allow") -> None:
        """Write rules to the scope's device files behind systemd's back."""
        for rule in rules:
            self.target.write(self.group, verb, rule)

    def directory(self) -> Path:
        """Return the scope's directory in the device hierarchy."""
        return self.target.root / f"sys/fs/cgroup/devices{self.group}"

    def transient(self, name: str = "") -> Path:
        """Return the scope's own file, or the drop-in `name` of it."""
        path = self.target.root / "run/systemd/transient" / self.scope
        return path.with_name(f"{self.scope}.d") / name if name else path

    def _rules(self) -> Optional[tuple[str, ...]]:
        try:
            return tuple(sorted((self.directory() / "devices.list").read_text().splitlines()))
        except FileNotFoundError:
            return None

    def _note(self, message: Message) -> None:
        """Keep the events that matter. Those of other units differ from machine to machine."""
        if message.reply_serial and message.reply_serial == self._awaited:
            self._events.append("reply")
        if message.message_type is not MessageType.SIGNAL:
            return
        if message.interface == MANAGER and message.member == "Reloading":
            self._events.append(f"Reloading {message.body[0]}")
        elif message.path == MANAGER_PATH and message.member in _MANAGER_SIGNALS and self.scope in message.body:
            self._events.append(message.member)
        elif message.path == self._path and message.member == "PropertiesChanged":
            self._events.append(f"PropertiesChanged {message.body[0].rpartition('.')[2]}")
        elif message.member == "NameOwnerChanged":
            self._events.append("NameOwnerChanged")
