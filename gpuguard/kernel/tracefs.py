"""The kernel's tracer, for one thing: the calls of bpf(2) that change programs, just before they are done.

Formats: Documentation/trace/ftrace.rst and events.rst; numbers: `enum bpf_cmd` in include/uapi/linux/bpf.h. What a
32-bit program calls is not traced, nor is a link that ends because its last descriptor is closed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import TraceUnavailableError

MOUNTS = (Path("/sys/kernel/tracing"), Path("/sys/kernel/debug/tracing"))
PROG_LOAD, PROG_ATTACH, PROG_DETACH, LINK_CREATE, LINK_UPDATE, LINK_DETACH = 5, 8, 9, 28, 29, 34
CHANGES = (PROG_ATTACH, PROG_DETACH, LINK_CREATE, LINK_UPDATE, LINK_DETACH)

_EVENT = "events/syscalls/sys_enter_bpf"
_PREFIX = "gpuguard-"
_INITIAL_PID_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in include/linux/proc_ns.h
# For each processor; the kernel takes two pages and more. A hundred calls fit, and of more the last are kept.
_BUFFER_KB = 8
_CHUNK = 1 << 16  # the kernel hands out a page or two at a time
_CHUNKS = 4
# Somebody else's start takes every instance for left behind that is not locked yet.
_TRIES = 5

# NAME-THREAD [CPU] FLAGS SECONDS: sys_bpf(cmd: HEX, ...; what comes after the name is the kernel's, and the name is at
# most 15 bytes of any kind, a line's end among them: the last that looks so is meant.
_LINE = re.compile(rb"^ *(.*)-(\d+) +(?:\([ \d-]+\) +)?\[\d+\] (?:\S+ +)?(\d+\.\d+): sys_bpf\(cmd: (?:0x)?([0-9a-f]+),")
_LOST = re.compile(rb"^CPU:\d+ \[LOST (?:\d+ )?EVENTS\]")
_NAMELESS = b"<...>"


@dataclass(frozen=True)
class Call:
    """One call that is about to be done.

    `at` is in seconds of CLOCK_MONOTONIC. `thread` is a number of the outermost pid namespace. `name` is the thread's
    (comm, which it may choose), "" where the tracer does not know it (yet).
    """

    at: float
    name: str
    thread: int
    command: int


@dataclass(frozen=True)
class Seen:
    """What was read; `lost`: there was more, which is gone."""

    calls: tuple[Call, ...] = ()
    lost: bool = False


def parse(text: bytes) -> Seen:
    """Return what the lines of trace_pipe tell; anything else in them is passed over."""
    calls, lost = [], False
    for line in text.split(b"\n"):
        found = _LINE.match(line)
        if found is not None:
            name, thread, at, command = found.groups()
            told = "" if name == _NAMELESS else name.decode("utf-8", "surrogateescape")
            calls.append(Call(float(at), told, int(thread), int(command, 16)))
        elif _LOST.match(line):
            lost = True
    return Seen(tuple(calls), lost)


def numbers_are_ours(proc: Path) -> bool:
    """Whether the tracer's numbers of threads mean the same to us: in the outermost pid namespace alone."""
    try:
        return (proc / "self/ns/pid").stat().st_ino == _INITIAL_PID_NAMESPACE
    except OSError:
        return False


def mount(candidates: Iterable[Path] = MOUNTS) -> Path:
    """Return where the tracer is mounted. Raises TraceUnavailableError."""
    for candidate in candidates:
        if os.path.isdir(candidate / "instances"):  # noqa: PTH112 -- False also where it may not be looked at
            return candidate
    raise TraceUnavailableError(
        f"no tracefs at {' or '.join(map(str, candidates))}: not mounted, not to be seen, or the kernel has no tracer"
    )


class Trace:
    """An instance of the tracer of our own, which disturbs no other use of it; for contextlib.closing().

    A lock on its directory tells that somebody has it, in whatever namespace: it ends with the process, however that
    ends, and the next that starts removes what is not locked. Raises TraceUnavailableError.
    """

    def __init__(self, root: Path, commands: Iterable[int] = CHANGES) -> None:
        try:
            (root / _EVENT).stat()
        except FileNotFoundError as error:
            raise TraceUnavailableError(
                f"{root / _EVENT}: the kernel traces no system calls (CONFIG_FTRACE_SYSCALLS), or not this one"
            ) from error
        except OSError as error:
            raise _unavailable(root, error) from error
        sweep(root)
        self.path = root / "instances" / f"{_PREFIX}{os.stat('/proc/self/ns/pid').st_ino}-{os.getpid()}"  # noqa: PTH116
        self._lock = _claim(self.path)
        self._pipe = -1
        try:
            self._prepare(" || ".join(f"cmd == {command}" for command in commands))
        except OSError as error:
            self.close()
            raise _unavailable(self.path, error) from error

    def _prepare(self, condition: str) -> None:
        self._write("buffer_size_kb", str(_BUFFER_KB))
        self._write("trace_clock", "mono")
        if (self.path / "buffer_percent").exists():  # since Linux 5.0: wake a reader at once, not when it is half full
            self._write("buffer_percent", "0")
        self._write(f"{_EVENT}/filter", condition)
        self._pipe = os.open(self.path / "trace_pipe", os.O_RDONLY | os.O_NONBLOCK)
        self._write(f"{_EVENT}/enable", "1")

    def _write(self, name: str, text: str) -> None:
        (self.path / name).write_text(text, encoding="ascii")

    def fileno(self) -> int:
        """Return the descriptor that is readable when there is something to read."""
        return self._pipe

    def read(self) -> Seen:
        """Return what has come, or the first few hundred calls of it. Raises TraceUnavailableError."""
        text = bytearray()
        try:
            for _ in range(_CHUNKS):
                text += os.read(self._pipe, _CHUNK)  # whole lines
        except BlockingIOError:
            pass  # that was all
        except OSError as error:
            raise _unavailable(self.path, error) from error
        return parse(bytes(text))

    def close(self) -> None:
        """Remove the instance."""
        if self._pipe >= 0:
            os.close(self._pipe)
        _remove(self.path)
        os.close(self._lock)


def sweep(root: Path) -> None:
    """Remove the instances that sentinels left behind when they were killed. Raises TraceUnavailableError."""
    try:
        found = [path for path in (root / "instances").iterdir() if path.name.startswith(_PREFIX)]
    except OSError as error:
        raise _unavailable(root, error) from error
    for path in found:
        try:
            lock = _locked(path)
        except OSError:  # somebody has it, or has removed it
            continue
        _remove(path)
        os.close(lock)


def _claim(path: Path) -> int:
    """Make an instance and return the descriptor of the directory that keeps it locked."""
    for _ in range(_TRIES):
        with contextlib.suppress(FileNotFoundError, BlockingIOError):  # just taken for left behind
            try:
                path.mkdir()
                return _locked(path)
            except (FileNotFoundError, BlockingIOError):
                raise
            except OSError as error:
                raise _unavailable(path, error) from error
    raise TraceUnavailableError(f"{path}: somebody removes it as often as it is made")


def _locked(path: Path) -> int:
    """Open a directory and lock it. Raises OSError when another has the lock, or it was removed meanwhile."""
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.stat()
    except OSError:
        os.close(directory)
        raise
    return directory


def _remove(path: Path) -> None:
    """Remove an instance. One that somebody else has a file of open is only made idle, and left to the next start."""
    with contextlib.suppress(OSError):  # what may be removed is removed; there is nobody to tell of the rest
        (path / _EVENT / "enable").write_text("0", encoding="ascii")
        path.rmdir()


def _unavailable(path: Path, error: OSError) -> TraceUnavailableError:
    why = error.strerror
    if error.errno in {errno.EPERM, errno.EACCES}:
        why = f"{why} (root is needed, and no lockdown=confidentiality or security module that forbids the tracer)"
    return TraceUnavailableError(f"{path}: {why}")
