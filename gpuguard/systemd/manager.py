"""systemd's manager: the verbs that gpuguard needs of it, in gpuguard's types.

Each raises what Bus.call() raises, and BusError for an answer that makes no sense.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gpuguard.errors import BusError, BusTimeoutError, NoSuchUnitError
from gpuguard.model.rule import Access
from gpuguard.model.unit import DeviceAllow, DevicePolicy, UnitProperties
from gpuguard.systemd.bus import CALL_TIMEOUT, Bus
from gpuguard.systemd.codec import variant

SYSTEMD = "org.freedesktop.systemd1"
SYSTEMD_PATH = "/org/freedesktop/systemd1"
MANAGER = "org.freedesktop.systemd1.Manager"
PROPERTIES = "org.freedesktop.DBus.Properties"

# systemd answers nothing while it reloads, which takes seconds on a node with thousands of units.
DECLARE_TIMEOUT = 90.0

_OF_UNIT = ("LoadState", "ActiveState", "Transient", "InvocationID", "FragmentPath", "ActiveEnterTimestampMonotonic")
_OF_KIND = ("ControlGroup", "DevicePolicy", "DeviceAllow", "BPFProgram")
_VERSION = re.compile(r"(?:systemd )?v?(\d+)")


class Manager:
    """systemd behind a connected bus."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus

    async def version(self) -> int:
        """Return systemd's major version, such as 252."""
        [text] = await self._call(PROPERTIES, "Get", "ss", [MANAGER, "Version"])
        match = _VERSION.match(text)
        if not match:
            raise BusError(f"systemd calls its version {text!r}; want a number")
        return int(match[1])

    async def unit(self, name: str) -> UnitProperties:
        """Return what systemd has in memory about a unit. Raises NoSuchUnitError when it is not loaded."""
        if not name:
            raise NoSuchUnitError("a unit's name is empty: systemd would answer for gpuguard's own unit")
        [path] = await self._call(MANAGER, "GetUnit", "s", [name])
        kind = name.rpartition(".")[2].capitalize()  # its properties are at …systemd1.Scope, …systemd1.Service, …
        unit = await self._properties(path, "Unit", _OF_UNIT)
        typed = await self._properties(path, kind, _OF_KIND)
        try:
            return _unit_properties(name, unit, typed)
        except (TypeError, ValueError) as error:
            raise BusError(f"systemd's answer about {name} cannot be read: {error}") from error

    async def _properties(self, path: str, kind: str, names: Sequence[str]) -> dict[str, Any]:
        """Return some of a unit's properties: a hundred others must not wait in memory for the next answer."""
        [every] = await self._call(PROPERTIES, "GetAll", "s", [f"{SYSTEMD}.{kind}"], path=path)
        return {name: every[name] for name in names if name in every}

    async def allow_devices(self, name: str, entries: Iterable[DeviceAllow]) -> None:
        """Add entries to a unit's DeviceAllow, which systemd keeps and applies at once. Repeating is harmless.

        An entry replaces the access of an entry with the same path. The reply proves nothing about the kernel:
        systemd answers OK to a path that it cannot resolve. BusTimeoutError means that it is unknown whether it was
        done or will be; see settled_after(). Raises ValueError without entries: an empty list would clear
        systemd's own.
        """
        pairs = [[entry.path, entry.access.letters()] for entry in entries]
        if not pairs:
            raise ValueError(f"no entries for {name}: systemd would clear its DeviceAllow list")
        properties = [["DeviceAllow", variant("a(ss)", pairs)]]
        body = [name, True, properties]
        await self._call(MANAGER, "SetUnitProperties", "sba(sv)", body, timeout=DECLARE_TIMEOUT)

    async def subscribe(self) -> None:
        """Ask systemd to send its signals for as long as this connection lasts. Repeating is harmless."""
        try:
            await self._call(MANAGER, "Subscribe")
        except BusError as error:
            if error.name != "org.freedesktop.systemd1.AlreadySubscribed":
                raise

    async def settled_after(self, timeout: float) -> bool:
        """Tell whether every call that was made before is finished for good; `timeout` is in seconds.

        It asks for a property. systemd takes calls in the order in which they arrive and finishes each before it
        takes the next (for root, whom it asks no polkit about), so an answer to this one proves that a call that
        timed out before was done or never will be. False: no answer yet, still unknown.

        This holds after a reconnect as well: systemd 252 refuses a call whose connection has closed before it took
        the call, as it can no longer look up who sent it (30 of 30 tries). Raises BusUnavailableError when the
        connection breaks, or systemd leaves the bus.
        """
        try:
            await self._call(PROPERTIES, "Get", "ss", [MANAGER, "Version"], timeout=timeout)
        except BusTimeoutError:
            return False
        return True

    async def _call(  # noqa: PLR0913 -- the fields of a method call
        self,
        interface: str,
        member: str,
        signature: str = "",
        body: Sequence[Any] = (),
        *,
        path: str = SYSTEMD_PATH,
        timeout: float = CALL_TIMEOUT,
    ) -> list[Any]:
        return await self.bus.call(SYSTEMD, path, interface, member, signature, body, timeout=timeout)


def _unit_properties(name: str, unit: Mapping[str, Any], typed: Mapping[str, Any]) -> UnitProperties:
    if unit.get("LoadState") == "not-found" and unit.get("ActiveState") == "inactive":
        # It went between the calls: asking at the path of a unit that is gone makes systemd invent an empty one.
        raise NoSuchUnitError(f"unit {name} is gone")
    return UnitProperties(
        name=name,
        control_group=typed.get("ControlGroup", ""),
        transient=unit.get("Transient", False),
        invocation=bytes(unit.get("InvocationID", b"")).hex(),
        policy=DevicePolicy(typed.get("DevicePolicy", "auto")),
        device_allow=tuple(_entry(path, access) for path, access in typed.get("DeviceAllow", [])),
        # BPFProgram= came with systemd 249.
        bpf_device_program=any(kind == "device" for kind, _ in typed.get("BPFProgram", [])),
        fragment=unit.get("FragmentPath", ""),
        started_usec=unit.get("ActiveEnterTimestampMonotonic", 0),
    )


@functools.lru_cache(maxsize=1024)
def _entry(path: str, access: str) -> DeviceAllow:
    """Return one and the same entry for equal texts: most units of a node have the same ones."""
    return DeviceAllow(path, Access.parse(access))
