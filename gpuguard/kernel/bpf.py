"""bpf(2), for reading only: which device programs gate a cgroup v2, and what they are made of.

Layouts: `union bpf_attr` and `struct bpf_prog_info` in the kernel's include/uapi/linux/bpf.h. Kernels take a longer
attribute than they know when its end is zero, and write no more of an info than its stated length.
For one thread: ctypes lets other threads run during a call, and the buffers of a query are shared by all calls.
"""

from __future__ import annotations

import ctypes
import errno
import os
from dataclasses import dataclass
from pathlib import Path

from gpuguard.errors import BpfUnavailableError, CgroupGoneError, CgroupUnreadableError, ProgramGoneError

_PROG_GET_FD_BY_ID = ctypes.c_int(13)
_OBJ_GET_INFO_BY_FD = ctypes.c_int(15)
_PROG_QUERY = ctypes.c_int(16)

_CGROUP_DEVICE = 6  # enum bpf_attach_type
_PROG_TYPE_CGROUP_DEVICE = 15
_INSTRUCTION_BYTES = 8
# A runtime's has some six for each rule, and the kernel takes a million. What is read is kept.
_MOST_INSTRUCTIONS = 1 << 14

_AT_ONCE = 256  # a cgroup holds at most 64 (BPF_CGROUP_MAX_PROGS): four full levels
_AT_MOST = 1 << 16
_TRIES = 8  # with a larger buffer each time, while others attach programs

# Seen on 6.18: CAP_SYS_ADMIN alone is enough for all three calls, CAP_BPF with CAP_NET_ADMIN only for two.
_PRIVILEGE = (
    "gpuguard needs CAP_SYS_ADMIN (CAP_BPF is not enough) in the host's user namespace, and no seccomp filter or "
    "security module (SELinux, AppArmor) that denies bpf(2)"
)


def _syscall_number(machine: str, pointer_bytes: int) -> int:
    """Return the number of bpf(2); -1, to which every kernel answers ENOSYS, where it is not known."""
    return {"x86_64": 321, "aarch64": 280}.get(machine, -1) if pointer_bytes == 8 else -1  # noqa: PLR2004 -- 64 bits


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_NUMBER = ctypes.c_long(_syscall_number(os.uname().machine, ctypes.sizeof(ctypes.c_void_p)))


class _QueryAttribute(ctypes.Structure):
    # As long as the largest union bpf_attr so far: some kernels since 6.17 write `revision` whatever size is passed.
    _fields_ = (
        ("target_fd", ctypes.c_uint32),
        ("attach_type", ctypes.c_uint32),
        ("query_flags", ctypes.c_uint32),
        ("attach_flags", ctypes.c_uint32),
        ("prog_ids", ctypes.c_uint64),
        ("prog_cnt", ctypes.c_uint32),
        ("unused", ctypes.c_uint8 * 28),
        ("revision", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 80),
    )


class _IdAttribute(ctypes.Structure):
    _fields_ = (("prog_id", ctypes.c_uint32), ("rest", ctypes.c_uint8 * 140))


class _InfoAttribute(ctypes.Structure):
    _fields_ = (
        ("bpf_fd", ctypes.c_uint32),
        ("info_len", ctypes.c_uint32),
        ("info", ctypes.c_uint64),
        ("rest", ctypes.c_uint8 * 128),
    )


class _ProgramInfo(ctypes.Structure):
    # The head of struct bpf_prog_info. `flags`: bit 0 is gpl_compatible, since Linux 4.18.
    _fields_ = (
        ("type", ctypes.c_uint32),
        ("id", ctypes.c_uint32),
        ("tag", ctypes.c_uint8 * 8),
        ("jited_prog_len", ctypes.c_uint32),
        ("xlated_prog_len", ctypes.c_uint32),
        ("jited_prog_insns", ctypes.c_uint64),
        ("xlated_prog_insns", ctypes.c_uint64),
        ("load_time", ctypes.c_uint64),
        ("created_by_uid", ctypes.c_uint32),
        ("nr_map_ids", ctypes.c_uint32),
        ("map_ids", ctypes.c_uint64),
        ("name", ctypes.c_uint8 * 16),
        ("ifindex", ctypes.c_uint32),
        ("flags", ctypes.c_uint32),
    )


_ids = (ctypes.c_uint32 * _AT_ONCE)()
_query = _QueryAttribute(attach_type=_CGROUP_DEVICE, prog_ids=ctypes.addressof(_ids))
_QUERY_ARGUMENTS = (_NUMBER, _PROG_QUERY, ctypes.byref(_query), ctypes.c_size_t(ctypes.sizeof(_query)))


@dataclass(frozen=True)
class DeviceProgram:
    """One BPF_PROG_TYPE_CGROUP_DEVICE program; it never changes. Ids are given out in turn and start again at 2^31."""

    id: int
    name: str
    """Empty when it has none; what is not printable ASCII is escaped."""
    tag: str
    """The kernel's digest of the instructions as loaded, in hex."""
    gpl_compatible: bool
    """By its licence. False for all on kernels before 4.18."""
    load_time: int
    """Nanoseconds since boot (CLOCK_BOOTTIME)."""
    code: bytes
    """The translated instructions, 8 bytes each."""


def query(directory_fd: int, *, effective: bool) -> tuple[int, ...]:
    """Return the ids of a cgroup's device programs; `effective`: also its ancestors', its own first.

    A descriptor may be kept: once its cgroup is removed the kernel answers ENOENT, here CgroupGoneError (seen on
    6.18, with and without `effective`), while fstat(2) goes on as before. Another cgroup of that name is not meant.
    Raises CgroupGoneError, BpfUnavailableError, CgroupUnreadableError.
    """
    _query.target_fd = directory_fd
    _query.query_flags = effective  # BPF_F_QUERY_EFFECTIVE is 1
    _query.prog_cnt = _AT_ONCE
    if _syscall(*_QUERY_ARGUMENTS) == 0:
        return tuple(_ids[: _query.prog_cnt])
    return _query_failed(directory_fd, effective, ctypes.get_errno())


def _query_failed(directory_fd: int, effective: bool, error: int) -> tuple[int, ...]:  # noqa: FBT001 -- one caller, in this order
    """Ask again with a larger buffer where that is the cure, else raise."""
    attribute = _QueryAttribute(
        target_fd=directory_fd, attach_type=_CGROUP_DEVICE, query_flags=effective, prog_cnt=_query.prog_cnt
    )
    for _ in range(_TRIES):
        if error != errno.ENOSPC or attribute.prog_cnt > _AT_MOST:
            break
        ids = (ctypes.c_uint32 * attribute.prog_cnt)()
        attribute.prog_ids = ctypes.addressof(ids)
        error = _bpf(_PROG_QUERY, attribute)[1]
        if not error:
            return tuple(ids[: attribute.prog_cnt])
    group = _path(directory_fd)
    if error == errno.ENOENT:
        raise CgroupGoneError(f"{group}: cannot read its device programs: the control group is gone")
    if error == errno.EBADF:
        raise CgroupUnreadableError(f"{group}: cannot read its device programs: not a cgroup v2 directory")
    if error == errno.ENOSPC:
        raise CgroupUnreadableError(f"{group}: cannot read its device programs: too many, or they change without end")
    raise _refusal(error, f"{group}: cannot read its device programs")


def program(program_id: int) -> DeviceProgram:
    """Read one program. Raises ProgramGoneError (query again), BpfUnavailableError, CgroupUnreadableError."""
    fd, error = _bpf(_PROG_GET_FD_BY_ID, _IdAttribute(prog_id=program_id))
    if error == errno.ENOENT:
        raise ProgramGoneError(f"device program {program_id} is gone: it was replaced or detached meanwhile")
    if error:
        raise _refusal(error, f"device program {program_id}: cannot open it")
    try:
        return _read(fd, program_id)
    finally:
        os.close(fd)


def _read(fd: int, program_id: int) -> DeviceProgram:
    info = _info(fd, program_id)
    if info.type != _PROG_TYPE_CGROUP_DEVICE or info.id != program_id:
        raise ProgramGoneError(f"device program {program_id} is gone: its id belongs to something else now")
    size = info.xlated_prog_len
    if not size:
        raise CgroupUnreadableError(f"device program {program_id}: the kernel hides its instructions: {_PRIVILEGE}")
    if size > _MOST_INSTRUCTIONS * _INSTRUCTION_BYTES:
        long = f"{size // _INSTRUCTION_BYTES} instructions, and gpuguard follows up to {_MOST_INSTRUCTIONS}"
        raise CgroupUnreadableError(f"device program {program_id} cannot be followed: {long}")
    code = ctypes.create_string_buffer(size)
    dump = _info(fd, program_id, code)
    raw = code.raw
    if not dump.xlated_prog_insns or not any(raw):
        raise CgroupUnreadableError(
            f"device program {program_id}: the kernel hides its instructions (net.core.bpf_jit_harden=2 blinds them): "
            "give gpuguard CAP_SYSLOG and set kernel.kptr_restrict below 2"
        )
    if dump.xlated_prog_len != size or size % _INSTRUCTION_BYTES:
        raise CgroupUnreadableError(f"device program {program_id}: the kernel gave a part of its instructions")
    name = bytes(dump.name).partition(b"\0")[0]
    return DeviceProgram(
        id=program_id,
        name=name.decode("latin-1").encode("unicode_escape").decode("ascii"),
        tag=bytes(dump.tag).hex(),
        gpl_compatible=bool(dump.flags & 1),
        load_time=dump.load_time,
        code=raw,
    )


def _info(fd: int, program_id: int, code: ctypes.Array[ctypes.c_char] | None = None) -> _ProgramInfo:
    """Ask about an open program; with `code`, also for its instructions."""
    info = _ProgramInfo()
    if code is not None:
        info.xlated_prog_len = len(code)
        info.xlated_prog_insns = ctypes.addressof(code)
    attribute = _InfoAttribute(bpf_fd=fd, info_len=ctypes.sizeof(info), info=ctypes.addressof(info))
    _, error = _bpf(_OBJ_GET_INFO_BY_FD, attribute)
    if error:
        raise _refusal(error, f"device program {program_id}: cannot read it")
    return info


def _bpf(command: ctypes.c_int, attribute: ctypes.Structure) -> tuple[int, int]:
    """Call bpf(2); return its result and, when that is negative, the errno."""
    result = _syscall(_NUMBER, command, ctypes.byref(attribute), ctypes.c_size_t(ctypes.sizeof(attribute)))
    return result, ctypes.get_errno() if result < 0 else 0


def _refusal(error: int, what: str) -> CgroupUnreadableError:
    why = f"{what}: {os.strerror(error)}"
    if error in {errno.EPERM, errno.EACCES}:
        return CgroupUnreadableError(f"{why}: {_PRIVILEGE}")
    if error in {errno.ENOSYS, errno.EINVAL}:
        return BpfUnavailableError(
            f"{why}: this kernel ({os.uname().release}, {os.uname().machine}) has no such call of bpf(2), or gpuguard "
            "does not know it there; cgroup v2 device programs cannot be read. "
            "Linux 4.15 with CONFIG_CGROUP_BPF on x86_64 or aarch64 has it"
        )
    return CgroupUnreadableError(why)


def _path(directory_fd: int) -> str:
    """Name a directory for an error's text."""
    try:
        return str(Path(f"/proc/self/fd/{directory_fd}").readlink())
    except OSError:
        return f"descriptor {directory_fd}"
