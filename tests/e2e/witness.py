"""Sees who changes scopes' device rules, which children their cgroups get, and what systemd is asked to do."""

from __future__ import annotations

import ctypes
import json
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.e2e import gate
from tests.lab.node import Node
from tests.lab.poll import until

_LIBC = ctypes.CDLL(None, use_errno=True)
# linux/fanotify.h, linux/inotify.h
_FAN_CLOEXEC, _FAN_NONBLOCK, _FAN_MARK_ADD, _FAN_MODIFY = 0x1, 0x2, 0x1, 0x2
_FAN_EVENT = struct.Struct("=IBBHQii")  # length, version, -, -, mask, descriptor, pid
_IN_CREATE, _IN_ISDIR = 0x100, 0x40000000
_IN_EVENT = struct.Struct("=iIII")  # watch, mask, cookie, length of the name after it
_BUFFER = 1 << 20


@dataclass(frozen=True)
class Write:
    """One write to a scope's devices.allow or devices.deny; `pid` is the writer's number outside the node."""

    cgroup: str
    file: str
    pid: int


@dataclass(frozen=True, order=True)
class Attachment:
    """A device program on a scope's cgroup; `systemd`: it has the name of systemd's."""

    cgroup: str
    program: int
    systemd: bool


class Witness(AbstractContextManager["Witness"]):
    """Watches the cgroups of scopes, each from when it is added.

    On v1 it sees writes; on v2 the device programs, of which systemd's has a name (since version 251).
    """

    def __init__(self, cgroups: Sequence[Path] = ()) -> None:
        self._fanotify = _checked(_LIBC.fanotify_init(_FAN_CLOEXEC | _FAN_NONBLOCK, os.O_RDONLY), "fanotify_init")
        self._inotify = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self._files: dict[int, tuple[str, str]] = {}
        self._programs: dict[Path, frozenset[Attachment]] = {}
        for cgroup in cgroups:
            self.add(cgroup)

    def add(self, cgroup: Path) -> None:
        """Watch one more."""
        _checked(_LIBC.inotify_add_watch(self._inotify, os.fsencode(cgroup), _IN_CREATE), str(cgroup))
        if not (cgroup / "devices.allow").exists():
            self._programs[cgroup] = _programs(cgroup)
            return
        for name in ("devices.allow", "devices.deny"):
            path = cgroup / name
            mask = ctypes.c_uint64(_FAN_MODIFY)
            mark = _LIBC.fanotify_mark(self._fanotify, _FAN_MARK_ADD, mask, -1, os.fsencode(path))
            _checked(mark, str(path))
            self._files[path.stat().st_ino] = (cgroup.name, name)

    def strangers(self, systemd: int) -> list[str]:
        """Return what anybody but systemd (its number outside the node) has changed since the last call."""
        found = [str(write) for write in self.writes() if write.pid != systemd]
        return found + self._others() + [str(change) for change in self.attached() if not change.systemd]

    def changes(self) -> list[str]:
        """Return what anybody has changed since the last call."""
        return [str(change) for change in (*self.writes(), *self.attached())] + self._others()

    def _others(self) -> list[str]:
        return [f"child {name}" for name in self.children()]

    def attached(self) -> list[Attachment]:
        """Return the programs (v2) that are new or gone since the last call."""
        found: set[Attachment] = set()
        for cgroup, before in self._programs.items():
            after = self._programs[cgroup] = _programs(cgroup)
            found |= before ^ after
        return sorted(found)

    def writes(self) -> list[Write]:
        """Return the writes (v1) since the last call. The kernel merges equal ones that nobody has fetched."""
        found = []
        for chunk in _chunks(self._fanotify):
            for *_, descriptor, pid in _FAN_EVENT.iter_unpack(chunk):
                found.append(Write(*self._files[os.fstat(descriptor).st_ino], pid))
                os.close(descriptor)
        return found

    def children(self) -> list[str]:
        """Return the names of the child cgroups that were made since the last call."""
        found = []
        for chunk in _chunks(self._inotify):
            at = 0
            while at < len(chunk):
                _, mask, _, length = _IN_EVENT.unpack_from(chunk, at)
                at += _IN_EVENT.size + length
                if mask & _IN_ISDIR:
                    found.append(os.fsdecode(chunk[at - length : at].rstrip(b"\0")))
        return found

    def __exit__(self, *_: object) -> None:
        """Watch no longer."""
        os.close(self._fanotify)
        os.close(self._inotify)


@dataclass(frozen=True)
class Call:
    """One method call to systemd over the system bus. `arguments` is its body as text."""

    member: str
    arguments: str


class BusWitness(AbstractContextManager["BusWitness"]):
    """Hears all calls that systemd gets over the node's system bus, by systemd's own busctl."""

    def __init__(self, node: Node) -> None:
        match = "--match=type='method_call',destination='org.freedesktop.systemd1'"
        self._node = node
        self._busctl = node.daemon(["busctl", "monitor", "--json=short", match])
        until(self._hears, 20, "the bus monitor to hear something")

    def calls(self, *members: str) -> list[Call]:
        """Return the calls so far, by default of all methods."""
        lines = [line for line in self._busctl.output().splitlines() if line.startswith("{") and line.endswith("}")]
        messages = [json.loads(line) for line in lines]
        calls = [Call(message["member"], json.dumps(message["payload"]["data"])) for message in messages]
        return [call for call in calls if not members or call.member in members]

    def settle(self) -> None:
        """Wait until everything that was sent before this has been heard."""
        heard = len(self.calls("Get"))
        self._ask()
        until(lambda: len(self.calls("Get")) > heard, 20, "the bus monitor to hear the last call")

    def _hears(self) -> bool:
        self._ask()
        return bool(self.calls())

    def _ask(self) -> None:
        manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
        self._node.run(["busctl", "get-property", *manager, "Version"])

    def __exit__(self, *_: object) -> None:
        """Stop listening."""
        self._busctl.kill()


def _programs(cgroup: Path) -> frozenset[Attachment]:
    programs = gate.read_programs(cgroup)
    return frozenset(Attachment(cgroup.name, program.id, program.name == "sd_devices") for program in programs)


def _chunks(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, _BUFFER)
        except BlockingIOError:
            return
        yield chunk


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return result
