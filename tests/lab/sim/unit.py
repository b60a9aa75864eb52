"""One unit of the fake systemd: what it remembers, what it reads from files, what it tells on the bus."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dbus_next.signature import Variant

from tests.lab.sim import unitfile
from tests.lab.sim.faults import ENXIO, INVALID_ARGS, PROPERTY_READ_ONLY, BusFault
from tests.lab.sim.resources import DeviceSettings

# Properties whose change makes systemd apply all controllers of the unit again, with their signatures.
RESOURCES = {
    "BlockIOWeight": "t",
    "CPUQuotaPerSecUSec": "t",
    "CPUShares": "t",
    "CPUWeight": "t",
    "IOWeight": "t",
    "MemoryLimit": "t",
    "MemoryMax": "t",
    "TasksMax": "t",
}
_UNSET = (1 << 64) - 1

# What runtimes say at a scope's start and what has no effect on devices.
_START_ONLY = {
    "After": "as",
    "Before": "as",
    "BlockIOAccounting": "b",
    "CPUAccounting": "b",
    "CollectMode": "s",
    "DefaultDependencies": "b",
    "Delegate": "b",
    "IOAccounting": "b",
    "MemoryAccounting": "b",
    "PIDs": "au",
    "Requires": "as",
    "Slice": "s",
    "TasksAccounting": "b",
    "TimeoutStopUSec": "t",
    "Wants": "as",
}
_SIGNATURES = {"DeviceAllow": "a(ss)", "DevicePolicy": "s", "BPFProgram": "a(ss)", "Description": "s", **RESOURCES}


@dataclass
class Unit:
    """A loaded unit. Times of files are in ns, `started_usec` in µs of CLOCK_MONOTONIC."""

    name: str
    slice: str = "system.slice"
    active: bool = False
    invocation: bytes = b""
    started_usec: int = 0
    transient: bool = False
    description: str = ""
    devices: DeviceSettings = field(default_factory=DeviceSettings)
    resources: dict[str, int] = field(default_factory=dict)
    bpf_programs: list[list[str]] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    fragment: str = ""
    fragment_ns: int = 0
    drop_ins: list[str] = field(default_factory=list)
    drop_ins_ns: int = 0

    @property
    def kind(self) -> str:
        """The type as it stands in names of interfaces and sections: Scope, Service, Slice."""
        return self.name.rpartition(".")[2].capitalize()

    @property
    def group(self) -> str:
        """The path of its cgroup, which it has while it is active."""
        return slice_path(self.name) if self.kind == "Slice" else f"{slice_path(self.slice).rstrip('/')}/{self.name}"

    def check(self, name: str, value: Variant, *, starting: bool = False) -> None:
        """Refuse a property that could not be set. Raises BusFault."""
        signature = _SIGNATURES.get(name) or (_START_ONLY.get(name) if starting else None)
        if signature is None:
            raise BusFault(PROPERTY_READ_ONLY, f"Cannot set property {name}, or unknown property.")
        if value.signature != signature:
            raise BusFault(ENXIO, "Failed to set unit properties: Unexpected message contents")
        if name == "DeviceAllow":
            DeviceSettings().merge(value.value)
        elif name == "DevicePolicy":
            DeviceSettings().set_policy(value.value)
        elif name == "BPFProgram" and any(not path.startswith("/") for _, path in value.value):
            raise BusFault(INVALID_ARGS, "BPFProgram= expects a normalized path.")

    def set(self, name: str, value: Any) -> None:  # noqa: ANN401  # whatever the bus carries
        """Take a checked property."""
        if name == "DeviceAllow":
            self.devices.merge([(path, access) for path, access in value])
        elif name == "DevicePolicy":
            self.devices.set_policy(value)
        elif name == "BPFProgram":
            self.bpf_programs = [*value, *self.bpf_programs] if value else []
        elif name == "Description":
            self.description = value
        elif name == "Slice":
            self.slice = value
        elif name == "PIDs":
            self.pids = list(value)
        elif name in RESOURCES:
            self.resources[name] = value

    def lines(self, name: str) -> list[tuple[str, str]]:
        """Return the lines, each with its section, that a unit file has for a property."""
        if name == "Description":
            return [("Unit", f"Description={self.description}")]
        values: list[Any] = []
        if name == "DeviceAllow":
            values = ["", *(f"{path} {access}" for path, access in self.devices.allow)]
        elif name == "DevicePolicy":
            values = [self.devices.policy]
        elif name == "BPFProgram":
            values = [f"{attach}:{path}" for attach, path in self.bpf_programs]
        elif name == "Slice":
            values = [self.slice]
        elif name in RESOURCES:
            values = [self.resources[name]]
        return [(self.kind, f"{name}={value}") for value in values]

    def load(self, root: Path, known: Container[Path]) -> None:
        """Forget the settings and read them from the files, as a reload does."""
        self.devices = DeviceSettings()
        self.resources.clear()
        self.description = ""
        self.bpf_programs = []
        self.fragment = unitfile.find_fragment(root, self.name)
        self.drop_ins = unitfile.find_drop_ins(root, self.name, known)
        self.fragment_ns = _mtime(self.fragment)
        self.drop_ins_ns = max((_mtime(path) for path in self.drop_ins), default=0)
        for path in filter(None, [self.fragment, *self.drop_ins]):
            for key, value in unitfile.assignments(Path(path).read_text()):
                self._read(key, value)

    def _read(self, key: str, value: str) -> None:
        if key == "DeviceAllow":
            self.devices.read_allow(value)
        elif key == "DevicePolicy":
            with contextlib.suppress(BusFault):  # systemd logs a value that it does not know, and goes on
                self.devices.set_policy(value)
        elif key == "BPFProgram":
            self.bpf_programs.insert(0, list(value.split(":", 1)))
        elif key == "Description":
            self.description = value
        elif key == "Slice":
            self.slice = value
        elif key in RESOURCES:
            self.resources[key] = int(value)

    def need_daemon_reload(self, root: Path, known: Container[Path]) -> bool:
        """Whether the files differ from what was read (unit_need_daemon_reload of systemd 252)."""
        files = [(self.fragment, self.fragment_ns)] if self.fragment else []
        files += [(path, self.drop_ins_ns) for path in self.drop_ins]
        return self.drop_ins != unitfile.find_drop_ins(root, self.name, known) or any(
            not Path(path).exists() or _mtime(path) > then for path, then in files
        )

    def unit_interface(self, root: Path, known: Container[Path]) -> dict[str, Variant]:
        """Return org.freedesktop.systemd1.Unit, as far as it is imitated."""
        return {
            "Id": Variant("s", self.name),
            "Names": Variant("as", [self.name]),
            "Description": Variant("s", self.description or self.name),
            "LoadState": Variant("s", "loaded" if self.active or self.fragment else "not-found"),
            "ActiveState": Variant("s", "active" if self.active else "inactive"),
            "SubState": Variant("s", "running" if self.active else "dead"),
            "FragmentPath": Variant("s", self.fragment),
            "DropInPaths": Variant("as", self.drop_ins),
            "NeedDaemonReload": Variant("b", self.need_daemon_reload(root, known)),
            "InvocationID": Variant("ay", self.invocation),
            "Transient": Variant("b", self.transient),
            "ActiveEnterTimestampMonotonic": Variant("t", self.started_usec),
        }

    def kind_interface(self) -> dict[str, Variant]:
        """Return the interface of its type, e.g. org.freedesktop.systemd1.Scope, as far as it is imitated."""
        resources = {name: Variant("t", self.resources.get(name, _UNSET)) for name in RESOURCES}
        return {
            "Slice": Variant("s", self.slice if self.active else ""),
            "ControlGroup": Variant("s", self.group if self.active else ""),
            "DevicePolicy": Variant("s", self.devices.policy),
            "DeviceAllow": Variant("a(ss)", [list(entry) for entry in self.devices.allow]),
            "BPFProgram": Variant("a(ss)", self.bpf_programs),
            **resources,
        }


def slice_path(name: str) -> str:
    """Return the cgroup of a slice: a-b.slice lives in a.slice."""
    stem = name[: -len(".slice")]
    if stem == "-":
        return "/"
    parts = stem.split("-")
    return "".join(f"/{'-'.join(parts[: count + 1])}.slice" for count in range(len(parts)))


def _mtime(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0


def monotonic_usec() -> int:
    """Return CLOCK_MONOTONIC in µs."""
    return time.monotonic_ns() // 1000
