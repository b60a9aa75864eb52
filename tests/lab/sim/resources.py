"""The device part of a unit, as src/core/cgroup.c and dbus-cgroup.c of systemd 252 treat it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Callable, Optional

from tests.lab.sim.faults import INVALID_ARGS, BusFault

POLICIES = ("auto", "closed", "strict")

# systemd's list for "closed" and "auto"; the last two are below /run/systemd/inaccessible.
_STANDARD = ("c 1:3", "c 1:5", "c 1:7", "c 1:8", "c 1:9", "c 5:0", "c 5:2", "c 0:0", "b 0:0")
_NUMBERED = re.compile(r"/dev/(char|block)/(\d+):(\d+)", re.ASCII)


Number = Callable[[str], Optional[str]]


@dataclass
class DeviceSettings:
    """DevicePolicy= and DeviceAllow= of one unit, the list in systemd's own order: the newest first."""

    policy: str = "auto"
    allow: list[tuple[str, str]] = field(default_factory=list)

    def set_policy(self, value: str) -> None:
        """Take a DevicePolicy from the bus or a file. Raises BusFault."""
        if value not in POLICIES:
            raise BusFault(INVALID_ARGS, "Failed to set unit properties: Invalid argument")
        self.policy = value

    def merge(self, entries: Sequence[tuple[str, str]]) -> None:
        """Take a DeviceAllow from the bus. Nothing changes when one entry is bad. Raises BusFault.

        The text of the path is the key; its access is replaced, not added to. An empty list clears.
        """
        for path, access in entries:
            _check(path, access)
        if not entries:
            self.allow.clear()
        for path, access in entries:
            known = [place for place, (other, _) in enumerate(self.allow) if other == path]
            if known:
                self.allow[known[0]] = (path, access or "rwm")
            else:
                self.allow.insert(0, (path, access or "rwm"))

    def read_allow(self, value: str) -> None:
        """Take one DeviceAllow= line of a unit file: an entry, or nothing, which clears."""
        path, _, access = value.partition(" ")
        if path:
            self.allow.insert(0, (path, access.strip() or "rwm"))
        else:
            self.allow.clear()

    def writes(self, number: Number, proc_devices: str) -> Iterator[tuple[str, str]]:
        """Yield (verb, text) for the device files in systemd's order.

        `number` tells what device node is at a path, e.g. "c 195:0", or None; `proc_devices` is the text
        of /proc/devices. An entry that means no device is left out silently, as systemd does.
        """
        if self.policy == "auto" and not self.allow:
            yield "allow", "a"
            return
        yield "deny", "a"
        if self.policy != "strict":
            for device in _STANDARD:
                yield "allow", f"{device} rwm"
            yield from (("allow", f"{device} rw") for device in _group("char-pts", proc_devices))
        for path, access in self.allow:
            for device in _devices(path, number, proc_devices):
                yield "allow", f"{device} {access}"


def _check(path: str, access: str) -> None:
    is_node = path.startswith("/dev/") and _is_normalized(path)
    if not (is_node or path.startswith(("char-", "block-"))) or re.search(r"\s", path):
        raise BusFault(INVALID_ARGS, "DeviceAllow= requires device node or pattern")
    if not set(access) <= set("rwm"):
        raise BusFault(INVALID_ARGS, "DeviceAllow= requires combination of rwm flags")


def _is_normalized(path: str) -> bool:
    return not {"", ".", ".."} & set(path[1:].split("/"))


def _devices(path: str, number: Number, proc_devices: str) -> list[str]:
    """Return what an entry means: from systemd 240 on /dev/char/M:m needs no node."""
    if numbered := _NUMBERED.fullmatch(path):
        kind, major, minor = numbered.groups()
        return [f"{kind[0]} {major}:{minor}"]
    if path.startswith("/dev/"):
        device = number(path)
        return [device] if device else []
    return _group(path, proc_devices)


def _group(text: str, proc_devices: str) -> list[str]:
    prefix, _, pattern = text.partition("-")
    kind = prefix[0]
    if pattern == "*":
        return [f"{kind} *:*"]
    if pattern.isdecimal():
        return [f"{kind} {pattern}:*"]
    majors = (
        major for section, major, name in _drivers(proc_devices) if section == kind and fnmatchcase(name, pattern)
    )
    return [f"{kind} {major}:*" for major in majors]


def _drivers(proc_devices: str) -> Iterator[tuple[str, str, str]]:
    section = "c"
    for line in proc_devices.splitlines():
        major, _, name = line.strip().partition(" ")
        if major == "Block":
            section = "b"
        elif major.isdecimal():
            yield section, major, name
