"""Asks the kernel for device nodes from inside cgroups; a process of its own, started by differential.py.

It sees nodes that it makes in a file system of its own, which nobody else sees and which ends with it. It opens nothing
but what it is told when it starts. Requests and answers are lines of JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import stat
import sys
from pathlib import Path

_CLONE_NEWNS = 0x20000
_MS_REC_PRIVATE = 0x44000
_MKNOD, _READ, _WRITE = 1, 2, 4
_FLAGS = {_READ: os.O_RDONLY, _WRITE: os.O_WRONLY, _READ | _WRITE: os.O_RDWR}
_TYPES = {"b": stat.S_IFBLK, "c": stat.S_IFCHR}

Question = tuple[str, int, int, int]


def _own_file_system(directory: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.unshare(_CLONE_NEWNS)
        or libc.mount(b"none", b"/", None, ctypes.c_ulong(_MS_REC_PRIVATE), None)
        or libc.mount(b"tmpfs", os.fsencode(directory), b"tmpfs", ctypes.c_ulong(0), b"mode=700")
    ):
        raise OSError(ctypes.get_errno(), "cannot make a file system of its own")
    os.chdir(directory)


def _make(name: str, kind: str, major: int, minor: int) -> None:
    os.mknod(name, 0o600 | _TYPES[kind], os.makedev(major, minor))


def _ask(kind: str, major: int, minor: int, access: int) -> int:
    """Return the errno, 0 when it was given."""
    try:
        if access == _MKNOD:
            _make("made", kind, major, minor)
            Path("made").unlink()
        else:
            os.close(os.open(f"{kind}{major}:{minor}", _FLAGS[access] | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def main() -> None:
    """Make the nodes that are listed first, then enter cgroups and ask, as told."""
    _own_file_system(Path(sys.argv[1]))
    for kind, major, minor in json.loads(sys.stdin.readline()):
        _make(f"{kind}{major}:{minor}", kind, major, minor)
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        if isinstance(request, str):
            Path(request, "cgroup.procs").write_text("0", encoding="ascii")
            print("in", flush=True)
        else:
            print(json.dumps([_ask(*question) for question in request]), flush=True)


if __name__ == "__main__":
    main()
