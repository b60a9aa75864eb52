"""Mount a directory of the machine in a running node: `python -m tests.lab.share PID SOURCE TARGET`.

A plain bind mount does not cross mount namespaces; a detached copy of the mount does (open_tree(2), Linux 5.2).
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

_AT_FDCWD = -100
_OPEN_TREE_CLONE, _AT_RECURSIVE, _MOVE_MOUNT_F_EMPTY_PATH = 0x1, 0x8000, 0x4
_OPEN_TREE, _MOVE_MOUNT = 428, 429  # the same on every architecture but alpha
_CLONE_NEWNS = 0x20000

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def share(pid: int, source: Path, target: Path) -> None:
    """Mount `source` read-only at `target` in the mount namespace of `pid` and stay there. Raises OSError."""
    flags = _OPEN_TREE_CLONE | _AT_RECURSIVE | os.O_CLOEXEC
    tree = _checked(_libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(source), flags), f"cannot copy the mount {source}")
    directory = source.is_dir()
    space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    _checked(_libc.setns(space, _CLONE_NEWNS), f"cannot enter the mount namespace of process {pid}")
    if directory:
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    moved = _libc.syscall(_MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH)
    _checked(moved, f"cannot mount {source} at {target}")
    subprocess.run(["mount", "-o", "remount,bind,ro", str(target)], check=True)


if __name__ == "__main__":
    share(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
