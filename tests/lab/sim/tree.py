"""The device hierarchy as files: what the kernel's cgroup file system shows, made of files and FIFOs.

A FIFO cannot answer a write with an error as the kernel does, so refused writes are kept in a log.
It also knows no borders between writes: two rules written one after the other may arrive as one text,
which is why the text is cut along the grammar of rules.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from tests.lab.sim.kernel import ALLOW, DENY, DeviceGroup

OUTSIDE = "outside"

_RECORD = re.compile(r"a(?: \*:\* rwm)?|[cb] [\d*]+:[\d*]+ [rwm]{1,3}|[^\n]+")
_HIERARCHIES = ("devices", "systemd", "unified")


@dataclass(frozen=True)
class Write:
    """One write to devices.allow or devices.deny. `error` is None when the kernel took it."""

    writer: str
    group: str
    verb: str
    text: str
    error: Optional[str]


class _Node:
    """One directory: its rules and the ends of its two FIFOs."""

    def __init__(self, path: Path, group: DeviceGroup) -> None:
        self.path = path
        self.group = group
        self.fifos: dict[str, int] = {}

    def has_children(self) -> bool:
        """Look at the directory itself, since others may make directories in it."""
        with os.scandir(self.path) as entries:
            return any(entry.is_dir() for entry in entries)


class Tree:
    """All device cgroups below `<cgroup>/devices`, named as /proc/PID/cgroup names them ("/", "/a.slice")."""

    def __init__(self, cgroup: Path, graveyard: Path) -> None:
        self.writes: list[Write] = []
        self._top = cgroup / "devices"
        self._graveyard = graveyard
        self._nodes: dict[str, _Node] = {}
        self._readable: dict[int, tuple[str, str]] = {}
        self._poll = select.epoll()
        graveyard.mkdir(parents=True)
        for name in _HIERARCHIES:
            (cgroup / name).mkdir(parents=True)
        (cgroup / "unified" / "cgroup.controllers").touch()
        self._make_one("/", None)

    def fileno(self) -> int:
        """Return a descriptor that is readable when somebody has written to a FIFO."""
        return self._poll.fileno()

    def __contains__(self, name: str) -> bool:
        """Whether there is such a group."""
        return name in self._nodes

    def make(self, name: str) -> None:
        """Make a group and what is missing of its ancestors; each starts with its parent's list."""
        if name not in self._nodes:
            parent = name.rpartition("/")[0] or "/"
            self.make(parent)
            self._make_one(name, self._nodes[parent].group)

    def remove(self, name: str) -> None:
        """Remove a group and all below it.

        The empty directory moves to the graveyard: with its inode number taken, no later group can
        get it, as the kernel never gives a cgroup's number twice.
        """
        self.drain()
        for other in [other for other in self._nodes if other == name or other.startswith(name + "/")]:
            node = self._nodes.pop(other)
            for descriptor in node.fifos.values():
                self._poll.unregister(descriptor)
                del self._readable[descriptor]
                os.close(descriptor)
            if node.group.parent:
                node.group.parent.children.remove(node.group)
        path = self._path(name)
        grave = self._graveyard / str(path.stat().st_ino)
        path.rename(grave)
        for directory, directories, files in os.walk(grave, topdown=False):
            for file in files:
                Path(directory, file).unlink()
            for child in directories:
                Path(directory, child).rmdir()

    def set_procs(self, name: str, pids: Iterable[int]) -> None:
        """Say which processes live in the group."""
        _replace(self._nodes[name].path / "cgroup.procs", "".join(f"{pid}\n" for pid in pids))

    def write(self, name: str, verb: str, text: str, writer: str) -> None:
        """Write as `writer`, after everything that was written to a FIFO before. Refusals go to the log.

        The file devices.list is not renewed: see publish.
        """
        self.drain()
        self._write(name, verb, text, writer)

    def publish(self, name: str) -> None:
        """Show the group's and its descendants' rules in devices.list."""
        node = self._nodes[name]
        _replace(node.path / "devices.list", node.group.list_text())
        if node.group.children:
            for other in [
                other for other in self._nodes if other.rpartition("/")[0] == name.rstrip("/") and other != name
            ]:
                self.publish(other)

    def drain(self) -> None:
        """Carry out what was written to the FIFOs."""
        for descriptor, _ in self._poll.poll(0):
            name, verb = self._readable[descriptor]
            for record in _records(_read_all(descriptor)):
                self._write(name, verb, record, OUTSIDE)
            self.publish(name)

    def close(self) -> None:
        """Let go of the FIFOs."""
        for node in self._nodes.values():
            for descriptor in node.fifos.values():
                os.close(descriptor)
        self._nodes.clear()
        self._poll.close()

    def _write(self, name: str, verb: str, text: str, writer: str) -> None:
        node = self._nodes[name]
        error = None
        try:
            node.group.write(verb, text, has_children=node.has_children())
        except OSError as refusal:
            error = refusal.strerror
        self.writes.append(Write(writer, name, verb, text, error))

    def _make_one(self, name: str, parent: Optional[DeviceGroup]) -> None:
        path = self._path(name)
        with contextlib.suppress(FileExistsError):
            path.mkdir()
        node = self._nodes[name] = _Node(path, DeviceGroup(parent))
        for verb in (ALLOW, DENY):
            fifo = path / f"devices.{verb}"
            os.mkfifo(fifo, 0o600)
            # Open for reading and writing: a FIFO whose last writer went away would be readable for ever.
            descriptor = os.open(fifo, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            node.fifos[verb] = descriptor
            self._readable[descriptor] = (name, verb)
            self._poll.register(descriptor, select.EPOLLIN)
        (path / "cgroup.procs").touch()
        self.publish(name)

    def _path(self, name: str) -> Path:
        return self._top / name.lstrip("/")


def _records(text: str) -> Iterator[str]:
    return (match.group() for match in _RECORD.finditer(text))


def _read_all(descriptor: int) -> str:
    pieces = []
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(descriptor, 1 << 16):
            pieces.append(piece)
    return b"".join(pieces).decode("ascii", "replace")


def _replace(path: Path, text: str) -> None:
    """Renew a file in one step, so that no reader sees half of it."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.replace(path)
