"""fanotify(7): who wrote to a file, on whatever mount and in whatever mount namespace.

An event carries an open descriptor of its file: the cgroup file systems have handles for FAN_REPORT_FID since Linux
6.6 alone. A mark keeps its inode in memory, also that of a cgroup that is gone: it must be taken away.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterator
from typing import Optional

from gpuguard.errors import FanotifyError

# include/uapi/linux/fanotify.h
_CLOEXEC, _NONBLOCK = 1, 2
_MARK_ADD, _MARK_REMOVE = 1, 2
_MODIFY = ctypes.c_uint64(0x2)
_Q_OVERFLOW = 0x4000
_EVENT = struct.Struct("=IBBHQii")
_VERSION = 3
_NO_PATH = None  # the file of the descriptor itself

_AT_ONCE = 64 * _EVENT.size
# The kernel could not open an event's file, and has dropped that event: its cgroup is gone.
_GONE = frozenset({errno.ENODEV, errno.ENOENT, errno.ESTALE, errno.ENXIO})

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fanotify_mark.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p)


class Fanotify:
    """Writes to marked files, in a queue of the kernel's that holds 16,384 events.

    The kernel makes one event of several writes by one process to one file as long as nobody has read it.
    """

    def __init__(self) -> None:
        """Open a group. Raises FanotifyError."""
        # The files of interest are there to be written alone.
        self._fd: int = _libc.fanotify_init(_CLOEXEC | _NONBLOCK, os.O_WRONLY | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error("cannot watch for writes")

    def fileno(self) -> int:
        """Return the descriptor, which is readable when there are events."""
        return self._fd

    def mark(self, fd: int) -> None:
        """Have writes to an open file told. Raises FanotifyError."""
        if _libc.fanotify_mark(self._fd, _MARK_ADD, _MODIFY, fd, _NO_PATH):
            raise _error("cannot watch a file for writes")

    def unmark(self, fd: int) -> None:
        """Have no more of them told; that there is no mark is as well. Raises FanotifyError."""
        if _libc.fanotify_mark(self._fd, _MARK_REMOVE, _MODIFY, fd, _NO_PATH) and ctypes.get_errno() != errno.ENOENT:
            raise _error("cannot stop watching a file for writes")

    def read(self) -> Iterator[Optional[tuple[int, int]]]:
        """Yield what the queue holds, at most 64 events; None stands for any number that got lost.

        An event is the inode of the written file and the number of the process that wrote, 0 for one outside this
        one's pid namespace. Go through it to its end: each event has a descriptor, closed as it is yielded.
        """
        try:
            events = os.read(self._fd, _AT_ONCE)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno not in _GONE:  # no descriptor to be had, for one
                yield None
            return
        for length, version, _, _, mask, fd, pid in _EVENT.iter_unpack(events):
            if version != _VERSION or length != _EVENT.size:
                raise FanotifyError(f"the kernel's events have an unknown form: version {version}, {length} bytes")
            if mask & _Q_OVERFLOW or fd < 0:
                yield None
                continue
            try:
                yield os.fstat(fd).st_ino, pid
            finally:
                os.close(fd)

    def close(self) -> None:
        """End it; its marks go with it."""
        os.close(self._fd)


def _error(what: str) -> FanotifyError:
    error = ctypes.get_errno()
    why = f"{what}: {os.strerror(error)}"
    if error == errno.EPERM:
        return FanotifyError(f"{why}: fanotify needs CAP_SYS_ADMIN")
    if error == errno.ENOSYS:
        return FanotifyError(f"{why}: this kernel is built without CONFIG_FANOTIFY")
    return FanotifyError(why)
