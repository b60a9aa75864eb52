"""Processes as /proc shows them, and which of them systemd is serving. Light: the sentinel imports it."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Optional

from gpuguard.model.process import Process

_LIMIT = 16
_TEXT = 4096  # bytes that are read of a file, all of which a process may fill as it likes
_ARGUMENTS = 64
# A process is read again when it has executed another program meanwhile.
_ATTEMPTS = 3
_STAT_FIELDS = 20  # after the name: the state, the parent, ... and the start time
_TICKS: int = os.sysconf("SC_CLK_TCK")
# What the clock may be set by before start times are told by the new one, in seconds: they must stay comparable.
_STEP = 0.5
_NAMESPACES = ("ns/pid", "ns/user")
# Where there is no such process any more, open files of its directory say so, whoever has its number by then.
_HELD = os.O_PATH | os.O_DIRECTORY
# A control group of the unified hierarchy that was removed before its last process was waited for (cgroups(7)).
_REMOVED = " (deleted)"
# Programs that ask systemd and wait for its answer: systemctl under all its names (systemctl(1), telinit(8)), and what
# people call the bus with, and runtimes. Others that use the private socket (systemd-run, systemd-mount) have no unit
# rewritten.
_ASKERS = frozenset({b"systemctl", b"telinit", b"init", b"busctl", b"gdbus", b"dbus-send", b"runc", b"crun", b"youki"})
# So many of the newest numbers are tried before /proc is listed, which takes longer than to try them.
_NEWEST = 128


class Processes:
    """The processes of one /proc, which may be the host's under another name.

    Texts hold bytes that are not UTF-8 as lone surrogates.
    """

    def __init__(self, proc: Path) -> None:
        self._proc = str(proc)
        self._own = tuple(self._link(f"{proc}/self/{name}") for name in _NAMESPACES)
        self._boot = _boot()

    def name(self, pid: int) -> str:
        """Return the kernel's name of a process, which is quick; "" when it is gone."""
        return _text(self._bytes(f"{pid}/comm").removesuffix(b"\n"))

    def read(self, pid: int) -> Optional[Process]:
        """Return a process, None when it is gone. What may not be read of it is empty."""
        if pid <= 0:
            return None
        try:
            directory = os.open(f"{self._proc}/{pid}", _HELD)
        except (OSError, OverflowError):
            return None
        try:
            for _ in range(_ATTEMPTS):
                found = self._read(pid, directory)
                if found is None or self._same(found, directory):
                    break
            return found  # one that keeps changing its name as well
        finally:
            os.close(directory)

    def user(self, pid: int) -> Optional[int]:
        """Return the effective user of a process, None when it is gone."""
        uids = _fields(self._bytes(f"{pid}/status")).get(b"Uid", b"").split(b"\t")
        return int(uids[1]) if len(uids) > 1 else None

    def runs(self, pid: int) -> bool:
        """Whether a process is running, or waits for nothing but a processor (state R of /proc/PID/stat, proc(5))."""
        return self._bytes(f"{pid}/stat").rpartition(b")")[2].split()[:1] == [b"R"]

    def lineage(self, pid: int, limit: int = _LIMIT) -> tuple[Process, ...]:
        """Return a process and its ancestors below PID 1, nearest first, at most `limit`; () when it is gone."""
        line: list[Process] = []
        while pid > 1 and len(line) < limit:
            found = self.read(pid)
            # A parent is older than its child: a younger one has taken its number.
            if found is None or (line and (found.started or 0.0) > (line[-1].started or 0.0)):
                break
            line.append(found)
            pid = found.parent
        return tuple(line)

    def requester(self, wanted: Callable[[tuple[str, ...]], bool], budget: float) -> tuple[Process, ...]:
        """Return who is asking systemd for something now, and its ancestors; () for nobody.

        `wanted` tells by a command line whether it may be the one; the youngest such process is taken. Looks for
        `budget` seconds at most, at the youngest processes first.
        """
        deadline = time.monotonic() + budget
        for pid in self._youngest_first():
            if self.asks(pid):
                line = self.lineage(pid)
                if line and wanted(line[0].command):
                    return line
            if time.monotonic() > deadline:
                break
        return ()

    def asks(self, pid: int) -> bool:
        """Whether it is a program of root's that asks systemd: others cannot use its private socket."""
        if self._bytes(f"{pid}/comm").removesuffix(b"\n") not in _ASKERS:
            return False
        status = _fields(self._bytes(f"{pid}/status"))
        # Any thread's number opens its files, and each program with GLib has a thread that is named gdbus.
        if status.get(b"Tgid") != b"%d" % pid or not _of_root(status):
            return False
        # su(1) and its like are root's for anybody, under any name and with any arguments (a link to them).
        try:
            return not os.stat(f"{self._proc}/{pid}/exe").st_mode & stat.S_ISUID  # noqa: PTH116 - no Path for speed
        except OSError:
            return True

    def _youngest_first(self) -> Iterator[int]:
        """Yield the numbers of processes, those last given first: they are given in turn, from the lowest again."""
        last = self._last()
        tried = range(last, max(last - _NEWEST, 1), -1)
        yield from tried
        try:
            every = [int(name) for name in os.listdir(self._proc) if name.isdecimal()]  # noqa: PTH208
        except OSError:
            return
        left = [pid for pid in every if pid not in tried and pid > 1]
        yield from sorted(left, key=lambda pid: (pid <= last, pid), reverse=True)

    def _last(self) -> int:
        """Return the number that was given last, of a thread perhaps; 0 when that is not told."""
        fields = self._bytes("loadavg").split()
        return int(fields[-1]) if fields and fields[-1].isdigit() else 0

    def _read(self, pid: int, directory: int) -> Optional[Process]:
        exe = self._link("exe", directory)  # first: it is what a process that ends takes along
        namespaces = tuple(self._link(name, directory) for name in _NAMESPACES)
        # A group may be of any depth: one that is cut, or too long for the kernel (ENAMETOOLONG), may be a container's.
        group = self._bytes("cgroup", directory)
        told = 0 < len(group) < _TEXT
        found = Process(
            pid,
            self._name(directory),
            exe=exe,
            control_group=_control_group(group) if told else "",
            native=told and "" not in self._own and namespaces == self._own,
        )
        # Reading a command line reads the process's own memory, and waits when that is made to fault (userfaultfd(2),
        # FUSE): neither a container nor a user is given such a hold on gpuguard.
        readable = found.native and not found.contained and _of_root(_fields(self._bytes("status", directory)))
        command = _arguments(self._bytes("cmdline", directory)) if readable else ()
        # The name, which comes before, may hold parentheses and spaces (proc(5)).
        fields = self._bytes("stat", directory).rpartition(b")")[2].split()
        if len(fields) < _STAT_FIELDS:
            return None
        started = self._epoch() + int(fields[_STAT_FIELDS - 1]) / _TICKS
        return replace(found, command=command, parent=int(fields[1]), started=started)

    def _same(self, found: Process, directory: int) -> bool:
        """Whether it is still the program that it was; one that has ended is."""
        return self._name(directory) == found.name and self._link("exe", directory) in {found.exe, ""}

    def _name(self, directory: int) -> str:
        return _text(self._bytes("comm", directory).removesuffix(b"\n"))

    def _epoch(self) -> float:
        """Return when the clock of boot time began, the same number each time unless the clock was set."""
        now = _boot()
        if abs(now - self._boot) > _STEP:
            self._boot = now
        return self._boot

    def _bytes(self, name: str, directory: Optional[int] = None) -> bytes:
        """Return the beginning of a file of /proc or of a process, b"" where there is none or it may not be read."""
        try:
            file = os.open(name if directory is not None else f"{self._proc}/{name}", os.O_RDONLY, dir_fd=directory)
        except OSError:
            return b""
        try:
            return os.read(file, _TEXT)
        except OSError:
            return b""
        finally:
            os.close(file)

    @staticmethod
    def _link(name: str, directory: Optional[int] = None) -> str:
        """Return where a link leads, "" where there is none (a kernel thread's executable) or it may not be read."""
        try:
            return os.readlink(name, dir_fd=directory)
        except OSError:
            return ""


def _boot() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _fields(raw: bytes) -> dict[bytes, bytes]:
    """Read /proc/PID/status."""
    return dict(line.split(b":\t", 1) for line in raw.split(b"\n") if b":\t" in line)


def _of_root(status: dict[bytes, bytes]) -> bool:
    """Whether the effective user is root."""
    return status.get(b"Uid", b"").split(b"\t")[1:2] == [b"0"]


def _arguments(raw: bytes) -> tuple[str, ...]:
    return tuple(_text(each) for each in raw.removesuffix(b"\0").split(b"\0")[:_ARGUMENTS]) if raw else ()


def _control_group(raw: bytes) -> str:
    """Return systemd's control group (cgroups(7), /proc/PID/cgroup): the unified one, on v1 the one named systemd."""
    unified, named = "", ""
    for line in _text(raw).split("\n"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            unified = path.removesuffix(_REMOVED)
        elif controllers == "name=systemd":
            named = path
    # A cgroup2 that somebody mounted beside systemd's v1 hierarchy has everybody in its root.
    return named if unified in {"", "/"} and named else unified
