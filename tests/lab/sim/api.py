"""The fake systemd's interfaces on the bus: Manager, and the properties of it and of its units."""

from __future__ import annotations

from collections.abc import Awaitable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Callable, Optional

from dbus_next.message import Message
from dbus_next.signature import Variant

from tests.lab.sim.bus import Bus
from tests.lab.sim.faults import (
    ALREADY_SUBSCRIBED,
    INVALID_ARGS,
    NO_UNIT_FOR_PID,
    NOT_SUBSCRIBED,
    UNKNOWN_INTERFACE,
    UNKNOWN_METHOD,
    UNKNOWN_OBJECT,
    UNKNOWN_PROPERTY,
    BusFault,
)
from tests.lab.sim.manager import MANAGER, MANAGER_PATH, PROPERTIES, SYSTEMD, Manager, unit_name, unit_path
from tests.lab.sim.unit import Unit

VERSION = "252.39-1~sim"

_UNITS = "a(ssssssouso)"

Answer = Optional[tuple[str, list[Any]]]
Method = Callable[[Message], Awaitable[Answer]]


class Api:
    """Answers method calls. `calls` keeps all that came, for tests that want there to be none."""

    def __init__(self, bus: Bus, manager: Manager, root: Path) -> None:
        self.calls: list[dict[str, Any]] = []
        self._bus = bus
        self._manager = manager
        self._root = root
        self._methods: dict[tuple[str, str], tuple[str, Method]] = {
            (PROPERTIES, "Get"): ("ss", self._get),
            (PROPERTIES, "GetAll"): ("s", self._get_all),
            (MANAGER, "Subscribe"): ("", self._subscribe),
            (MANAGER, "Unsubscribe"): ("", self._unsubscribe),
            (MANAGER, "GetUnit"): ("s", self._get_unit),
            (MANAGER, "GetUnitByPID"): ("u", self._get_unit_by_pid),
            (MANAGER, "ListUnits"): ("", self._list_units),
            (MANAGER, "ListUnitsByPatterns"): ("asas", self._list_units_by_patterns),
            (MANAGER, "SetUnitProperties"): ("sba(sv)", self._set_unit_properties),
            (MANAGER, "StartTransientUnit"): ("ssa(sv)a(sa(sv))", self._start_transient_unit),
            (MANAGER, "StopUnit"): ("ss", self._stop_unit),
            (MANAGER, "Reload"): ("", self._reload),
            (MANAGER, "Reexecute"): ("", self._reexecute),
        }

    async def serve(self, call: Message) -> None:
        """Do what one call asks for, reply, and do what comes after the reply."""
        self.calls.append({"sender": call.sender, "path": call.path, "member": call.member, "body": _plain(call.body)})
        try:
            answer = await self._method(call)(call)
        except BusFault as fault:
            await self._bus.send(Message.new_error(call, fault.name, fault.text))
        else:
            if answer is not None:
                await self._bus.send(Message.new_method_return(call, *answer))
        await self._manager.dispatch()

    async def reexec(self) -> None:
        """Become a new process, which takes the name over; whoever waits for an answer of the old one gets none."""
        await self._manager.begin_reload()
        await self._bus.connect()
        await self._manager.end_reexec()

    def _method(self, call: Message) -> Method:
        if (call.interface, call.member) not in self._methods or (
            call.interface == MANAGER and call.path != MANAGER_PATH
        ):
            raise BusFault(UNKNOWN_METHOD, f"Unknown method {call.member} or interface {call.interface}.")
        signature, method = self._methods[call.interface, call.member]
        if call.signature != signature:
            text = f"Invalid arguments '{call.signature}' to call {call.member}, expecting '{signature}'."
            raise BusFault(INVALID_ARGS, text)
        return method

    async def _subscribe(self, call: Message) -> Answer:
        if call.sender in self._bus.subscribers:
            raise BusFault(ALREADY_SUBSCRIBED, "Client is already subscribed.")
        self._bus.subscribers.add(call.sender)
        return "", []

    async def _unsubscribe(self, call: Message) -> Answer:
        if call.sender not in self._bus.subscribers:
            raise BusFault(NOT_SUBSCRIBED, "Client is not subscribed.")
        self._bus.subscribers.remove(call.sender)
        return "", []

    async def _get_unit(self, call: Message) -> Answer:
        return "o", [unit_path(self._manager.unit(call.body[0]).name)]

    async def _get_unit_by_pid(self, call: Message) -> Answer:
        [pid] = call.body
        for unit in self._manager.units.values():
            if pid in unit.pids:
                return "o", [unit_path(unit.name)]
        raise BusFault(NO_UNIT_FOR_PID, f"PID {pid} does not belong to any loaded unit.")

    async def _list_units(self, _call: Message) -> Answer:
        return _UNITS, [[_row(unit) for unit in self._manager.units.values()]]

    async def _list_units_by_patterns(self, call: Message) -> Answer:
        states, patterns = call.body
        rows = [_row(unit) for unit in self._manager.units.values()]
        if states:
            rows = [row for row in rows if set(states) & set(row[2:5])]
        if patterns:
            rows = [row for row in rows if any(fnmatchcase(row[0], pattern) for pattern in patterns)]
        return _UNITS, [rows]

    async def _set_unit_properties(self, call: Message) -> Answer:
        name, _, properties = call.body
        await self._manager.set_properties(name, properties)
        return "", []

    async def _start_transient_unit(self, call: Message) -> Answer:
        name, _, properties, _ = call.body
        return "o", [await self._manager.start_transient(name, properties)]

    async def _stop_unit(self, call: Message) -> Answer:
        return "o", [await self._manager.stop(call.body[0])]

    async def _reload(self, _call: Message) -> Answer:
        await self._manager.reload()
        return "", []

    async def _reexecute(self, _call: Message) -> Answer:
        await self.reexec()
        return None

    async def _get(self, call: Message) -> Answer:
        interface, name = call.body
        properties = self._properties(call.path, interface)
        if name not in properties:
            raise BusFault(UNKNOWN_PROPERTY, f"Unknown interface {interface} or property {name}.")
        return "v", [properties[name]]

    async def _get_all(self, call: Message) -> Answer:
        return "a{sv}", [self._properties(call.path, call.body[0])]

    def _properties(self, path: str, interface: str) -> dict[str, Variant]:
        interfaces = self._interfaces(path)
        if interface not in interfaces:
            raise BusFault(UNKNOWN_INTERFACE, f"Unknown interface {interface}.")
        return interfaces[interface]

    def _interfaces(self, path: str) -> dict[str, dict[str, Variant]]:
        if path == MANAGER_PATH:
            return {MANAGER: {"Version": Variant("s", VERSION), "SystemState": Variant("s", "running")}}
        name = unit_name(path)
        if name is None:
            raise BusFault(UNKNOWN_OBJECT, f"Unknown object '{path}'.")
        # systemd answers for any well-formed name; what it does not know is "not-found" and "inactive".
        unit = self._manager.units.get(name)
        if unit is None:
            self._manager.load_in_vain(name)
            unit = Unit(name)
        return {
            f"{SYSTEMD}.Unit": unit.unit_interface(self._root, self._manager.known_directories),
            f"{SYSTEMD}.{unit.kind}": unit.kind_interface(),
        }


def _row(unit: Unit) -> list[Any]:
    state = ["active", "running"] if unit.active else ["inactive", "dead"]
    return [unit.name, unit.description or unit.name, "loaded", *state, "", unit_path(unit.name), 0, "", "/"]


def _plain(value: Any) -> Any:  # noqa: ANN401  # whatever the bus carries
    if isinstance(value, Variant):
        return _plain(value.value)
    if isinstance(value, bytes):
        return value.hex()
    return [_plain(item) for item in value] if isinstance(value, list) else value
