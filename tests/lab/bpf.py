"""Load device programs, attach them to cgroups, and make cgroups to attach them to; what gpuguard never does.

Layouts: `union bpf_attr` in include/uapi/linux/bpf.h. Needs root and a cgroup v2 mount, which a hybrid host has too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import multiprocessing
import os
import secrets
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Callable, Optional, TypeVar

from tests.lab.cgroups import membership, remove
from tests.lab.errors import LabError

T = TypeVar("T")

MOUNTS = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
ALLOW_ALL = bytes.fromhex("b700000001000000 9500000000000000")  # r0 = 1; exit
DENY_ALL = bytes.fromhex("b700000000000000 9500000000000000")  # r0 = 0; exit
DEVICE, SOCKET_FILTER = 15, 1  # enum bpf_prog_type
CAP_SYS_ADMIN, CAP_SYSLOG = 21, 34  # linux/capability.h

_NUMBER = {"x86_64": 321, "aarch64": 280}.get(os.uname().machine, -1)
_PROG_LOAD, _OBJ_PIN, _PROG_ATTACH, _PROG_DETACH, _PROG_GET_FD_BY_ID, _OBJ_GET_INFO_BY_FD = 5, 6, 8, 9, 13, 15
_CGROUP_DEVICE = 6
_ALLOW_OVERRIDE, _ALLOW_MULTI, _REPLACE = 1, 2, 4
_TRIES = 10  # a signal, or a lack of locked memory, ends a load with EAGAIN

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class Loaded:
    """A loaded device program: it lives while its descriptor is open or it is attached somewhere."""

    fd: int
    id: int


@contextlib.contextmanager
def program(code: bytes, *, licence: str = "Apache", name: str = "") -> Iterator[Loaded]:
    """Load a device program for the time of the block. Raises LabError with the verifier's log."""
    fd = load(code, licence=licence, name=name)
    try:
        yield Loaded(fd, program_id(fd))
    finally:
        os.close(fd)


def load(code: bytes, *, licence: str = "Apache", name: str = "", kind: int = DEVICE) -> int:
    """Load a program ("GPL" or "Apache") and return its descriptor. Raises LabError with the verifier's log.

    `kind`: its enum bpf_prog_type, for programs that gpuguard should not take for its own.
    """
    if len(name) > 15:
        raise LabError(f"{name!r}: the kernel keeps 15 characters of a program's name")
    instructions = ctypes.create_string_buffer(code, len(code))
    text = ctypes.create_string_buffer(licence.encode("ascii"))
    log = ctypes.create_string_buffer(1 << 16)
    for level in (0, 1):  # the log makes a load slow: only for one that has failed
        attribute = struct.pack(
            "=IIQQIIQII16s",
            kind,
            len(code) // 8,
            ctypes.addressof(instructions),
            ctypes.addressof(text),
            level,
            len(log) * level,
            ctypes.addressof(log) * level,
            0,
            0,
            name.encode("ascii"),
        )
        fd, error = _bpf(_PROG_LOAD, attribute)
        if fd >= 0:
            return fd
    raise LabError(f"cannot load the program: {os.strerror(error)}\n{log.value.decode(errors='replace')}")


def program_id(fd: int) -> int:
    """Return the kernel's id of a loaded program."""
    info = ctypes.create_string_buffer(256)
    _call(_OBJ_GET_INFO_BY_FD, struct.pack("=IIQ", fd, len(info), ctypes.addressof(info)), "cannot ask for its id")
    return int(struct.unpack_from("=I", info, 4)[0])


@contextlib.contextmanager
def opened(number: int) -> Iterator[int]:
    """Open the program of an id that somebody else has loaded, for the time of the block. Raises LabError."""
    fd, error = _bpf(_PROG_GET_FD_BY_ID, struct.pack("=I", number))
    if error:
        raise LabError(f"cannot open program {number}: {os.strerror(error)}")
    try:
        yield fd
    finally:
        os.close(fd)


def pin(path: Path, fd: int) -> None:
    """Give a program a name in a bpffs, which keeps it alive. Raises LabError."""
    text = ctypes.create_string_buffer(os.fsencode(path))
    _call(_OBJ_PIN, struct.pack("=QI", ctypes.addressof(text), fd), f"cannot pin a program at {path}")


def attach(cgroup: Path, fd: int, *, overridable: bool = False) -> None:
    """Attach a program behind those that are there (BPF_F_ALLOW_MULTI). Raises LabError.

    `overridable`: as the only one, which is not in force for a group below that has one (BPF_F_ALLOW_OVERRIDE).
    """
    with _directory(cgroup) as directory:
        _call(
            _PROG_ATTACH,
            struct.pack("=IIII", directory, fd, _CGROUP_DEVICE, _ALLOW_OVERRIDE if overridable else _ALLOW_MULTI),
            f"cannot attach a program to {cgroup}",
        )


def replace(cgroup: Path, old: int, new: int) -> None:
    """Put a program in the place of another one, with no moment between (BPF_F_REPLACE). Raises LabError."""
    with _directory(cgroup) as directory:
        _call(
            _PROG_ATTACH,
            struct.pack("=IIIII", directory, new, _CGROUP_DEVICE, _ALLOW_MULTI | _REPLACE, old),
            f"cannot replace a program of {cgroup}",
        )


def detach(cgroup: Path, fd: int) -> None:
    """Take a program away from a cgroup. Raises LabError."""
    with _directory(cgroup) as directory:
        _call(_PROG_DETACH, struct.pack("=III", directory, fd, _CGROUP_DEVICE), f"cannot detach a program of {cgroup}")


@functools.lru_cache(maxsize=1)
def why_not() -> Optional[str]:
    """Say why this machine cannot attach device programs to cgroups of its own, or return None when it can.

    Tried, not guessed.
    """
    if os.geteuid() != 0:
        return "device programs need root (CAP_BPF, CAP_NET_ADMIN); this is an ordinary user"
    if _NUMBER < 0:
        return f"the number of bpf(2) on {os.uname().machine} is not known here"
    if _mount() is None:
        return "no cgroup v2 hierarchy is mounted at /sys/fs/cgroup or /sys/fs/cgroup/unified"
    try:
        with scratch() as cgroup, program(ALLOW_ALL) as loaded:
            attach(cgroup, loaded.fd)
    except (LabError, OSError) as error:
        return f"this machine does not allow device programs on cgroups: {error}"
    return None


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make an empty cgroup v2 below this process's own; remove it, what is below and its processes at the end.

    Its programs go with it. Raises LabError.
    """
    mounted = _mount()
    if mounted is None:
        raise LabError("no cgroup v2 hierarchy is mounted")
    own = membership(Path("/proc/self/cgroup").read_text(encoding="ascii"))[""]
    cgroup = mounted / own.lstrip("/") / f"gpuguardtest{secrets.token_hex(6)}"
    cgroup.mkdir()
    try:
        yield cgroup
    finally:
        remove(cgroup, time.monotonic() + 10)


def inside(cgroup: Path, function: Callable[[], T]) -> T:
    """Call `function` in a child process that has entered `cgroup`, and return what it returns.

    Raises LabError naming the exception that it ended with; the traceback is on standard error.
    """
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(cgroup, function, sender), daemon=True)
    child.start()
    sender.close()
    try:
        result: T
        result, trouble = receiver.recv()
    except EOFError:
        trouble = "the child ended without an answer"
    finally:
        receiver.close()
        child.join(timeout=10)
        child.kill()  # where it has answered and does not end
        child.join()
    if trouble:
        raise LabError(f"in {cgroup}: {trouble}")
    return result


def _child(cgroup: Path, function: Callable[[], object], sender: Connection) -> None:
    try:
        (cgroup / "cgroup.procs").write_text("0", encoding="ascii")
        sender.send((function(), ""))
    except Exception as error:
        sender.send((None, repr(error)))
        raise


def drop(capability: int) -> None:
    """Take one capability out of this process's effective set (capset(2)): for a child's use. Raises LabError."""
    header = ctypes.create_string_buffer(struct.pack("=Ii", 0x20080522, 0), 8)  # _LINUX_CAPABILITY_VERSION_3
    data = (ctypes.c_uint32 * 6)()  # effective, permitted, inheritable of 0-31, then of 32-63
    if _libc.capget(header, data):
        raise LabError(f"cannot read capabilities: {os.strerror(ctypes.get_errno())}")
    data[capability // 32 * 3] &= ~(1 << capability % 32)
    if _libc.capset(header, data):
        raise LabError(f"cannot drop capability {capability}: {os.strerror(ctypes.get_errno())}")


def _mount() -> Optional[Path]:
    return next(
        (mount for mount in MOUNTS if (mount / "cgroup.procs").exists() and (mount / "cgroup.controllers").exists()),
        None,
    )


@contextlib.contextmanager
def _directory(path: Path) -> Iterator[int]:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield directory
    finally:
        os.close(directory)


def _call(command: int, attribute: bytes, what: str) -> None:
    error = _bpf(command, attribute)[1]
    if error:
        raise LabError(f"{what}: {os.strerror(error)}")


def _bpf(command: int, attribute: bytes) -> tuple[int, int]:
    """Call bpf(2); return its result and the errno, 0 when it succeeded."""
    whole = ctypes.create_string_buffer(attribute, 144)  # zeros to the end: as long as any kernel's attribute so far
    for _ in range(_TRIES):
        result = _libc.syscall(ctypes.c_long(_NUMBER), ctypes.c_int(command), whole, ctypes.c_size_t(len(whole)))
        if result >= 0:
            return result, 0
        if ctypes.get_errno() != errno.EAGAIN:
            break
    return result, ctypes.get_errno()
