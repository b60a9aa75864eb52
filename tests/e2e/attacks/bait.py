"""Files that nobody may read: the kernel tells who does all the same."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
# linux/inotify.h
_IN_ACCESS, _IN_OPEN, _IN_DONT_FOLLOW = 0x1, 0x20, 0x02000000
_EVENT = struct.Struct("=iIII")  # watch, mask, cookie, length of the name after it


class Bait(AbstractContextManager["Bait"]):
    """Watches files and directories, and what lies directly in these, for being opened or read."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self._inotify = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._paths = {}
        for path in paths:
            mask = _IN_ACCESS | _IN_OPEN | _IN_DONT_FOLLOW
            watch = _LIBC.inotify_add_watch(self._inotify, os.fsencode(path), mask)
            if watch < 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
            self._paths[watch] = path

    def taken(self) -> list[str]:
        """Return what was opened or read since the last call."""
        found = []
        try:
            while True:
                chunk = os.read(self._inotify, 1 << 16)
                at = 0
                while at < len(chunk):
                    watch, _, _, length = _EVENT.unpack_from(chunk, at)
                    at += _EVENT.size + length
                    name = os.fsdecode(chunk[at - length : at].rstrip(b"\0"))
                    found.append(str(self._paths[watch] / name) if watch in self._paths else "events were lost")
        except BlockingIOError:
            return found

    def __exit__(self, *_: object) -> None:
        """Watch no longer."""
        os.close(self._inotify)
