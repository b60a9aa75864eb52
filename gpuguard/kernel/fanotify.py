"""fanotify(7): who wrote to a file, on whatever mount and in whatever mount namespace.

The cgroup file systems have handles for FAN_REPORT_FID since Linux 6.6 alone; before that an event carries an open
descriptor of its file. A mark keeps its inode in memory, also that of a cgroup that is gone: it must be taken away.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import Optional

from gpuguard.errors import FanotifyError

# include/uapi/linux/fanotify.h
_CLOEXEC, _NONBLOCK = 1, 2
_MARK_ADD, _MARK_REMOVE = 1, 2
_MODIFY = ctypes.c_uint64(0x2)
_Q_OVERFLOW = 0x4000
_REPORT_FID = 0x200
# include/uapi/linux/fcntl.h
_AT_EMPTY_PATH, _AT_HANDLE_FID = 0x1000, 0x200
EVENT = struct.Struct("=IBBHQii")
_VERSION = 3
_NO_PATH = None  # the file of the descriptor itself

# struct fanotify_event_info_fid after the event: its type and length, the file system's id, the handle.
PID_AT = 20
HANDLE_AT = EVENT.size + 4 + 8
_HANDLE = struct.Struct("=Ii")
_MOST_BYTES = 128  # MAX_HANDLE_SZ

AT_ONCE = 4096
# The kernel could not open an event's file, and has dropped that event: its cgroup is gone.
_GONE = frozenset({errno.ENODEV, errno.ENOENT, errno.ESTALE, errno.ENXIO})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.name_to_handle_at.argtypes = (
    ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int), ctypes.c_int,
)  # fmt: skip
_libc.fanotify_mark.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p)


class Fanotify:
    """Writes to marked files, in a queue of the kernel's that holds 16,384 events.

    The kernel makes one event of several writes by one process to one file as long as nobody has read it. Where it can,
    it names the file by its handle; else it opens the file for each event, which takes a third of the time until the
    event is understood.
    """

    def __init__(self, *, handles: bool = True) -> None:
        """Open a group. Raises FanotifyError."""
        # The files of interest are there to be written alone.
        flags = _CLOEXEC | _NONBLOCK | (_REPORT_FID if handles else 0)
        self._fd: int = _libc.fanotify_init(flags, os.O_WRONLY | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error("cannot watch for writes")
        self.handles = handles

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are events."""
        return self._fd

    def key(self, fd: int) -> bytes:
        """Return what events call an open file. Raises FanotifyError."""
        return _handle(fd) if self.handles else _inode(fd)

    def mark(self, fd: int) -> None:
        """Have writes to an open file told. Raises FanotifyError."""
        if _libc.fanotify_mark(self._fd, _MARK_ADD, _MODIFY, fd, _NO_PATH):
            raise _error("cannot watch a file for writes")

    def unmark(self, fd: int) -> None:
        """Have no more of them told; that there is no mark is as well. Raises FanotifyError."""
        if _libc.fanotify_mark(self._fd, _MARK_REMOVE, _MODIFY, fd, _NO_PATH) and ctypes.get_errno() != errno.ENOENT:
            raise _error("cannot stop watching a file for writes")

    def read(self) -> list[Optional[tuple[bytes, int]]]:
        """Return what the queue holds, at most some 64 events; None stands for any number that got lost.

        An event is the key of the written file and the number of the process that wrote, 0 for one outside this
        one's pid namespace.
        """
        try:
            events = os.read(self._fd, AT_ONCE)
        except BlockingIOError:
            return []
        except OSError as error:
            # No descriptor to be had, for one.
            return [] if error.errno in _GONE else [None]
        return self.understand(events)

    def understand(self, events: bytes) -> list[Optional[tuple[bytes, int]]]:
        """Return what was read, as read() does."""
        found: list[Optional[tuple[bytes, int]]] = []
        start = 0
        while start < len(events):
            length, version, _, _, mask, fd, pid = EVENT.unpack_from(events, start)
            if version != _VERSION or length < EVENT.size:
                raise FanotifyError(f"the kernel's events have an unknown form: version {version}, {length} bytes")
            if mask & _Q_OVERFLOW:
                found.append(None)
            elif self.handles:
                found.append((events[start + HANDLE_AT : start + length], pid))
            elif fd < 0:
                found.append(None)
            else:
                found.append((_inode_and_close(fd), pid))
            start += length
        return found

    def close(self) -> None:
        """End it; its marks go with it."""
        os.close(self._fd)


def _handle(fd: int) -> bytes:
    """Return a file's handle as an event of FAN_REPORT_FID ends: struct file_handle, padded to 4 bytes."""
    raw, mount = ctypes.create_string_buffer(_HANDLE.size + _MOST_BYTES), ctypes.c_int()
    _HANDLE.pack_into(raw, 0, _MOST_BYTES, 0)
    if _libc.name_to_handle_at(fd, b"", raw, ctypes.byref(mount), _AT_EMPTY_PATH | _AT_HANDLE_FID):
        raise _error("cannot name a file by its handle")
    size, _ = _HANDLE.unpack_from(raw)
    return raw.raw[: _HANDLE.size + size].ljust(-(-(_HANDLE.size + size) // 4) * 4, b"\0")


def _inode(fd: int) -> bytes:
    return os.fstat(fd).st_ino.to_bytes(8, sys.byteorder)


def _inode_and_close(fd: int) -> bytes:
    try:
        return _inode(fd)
    finally:
        os.close(fd)


def _error(what: str) -> FanotifyError:
    error = ctypes.get_errno()
    why = f"{what}: {os.strerror(error)}"
    if error == errno.EPERM:
        return FanotifyError(f"{why}: fanotify needs CAP_SYS_ADMIN")
    if error == errno.ENOSYS:
        return FanotifyError(f"{why}: this kernel is built without CONFIG_FANOTIFY")
    return FanotifyError(why)
