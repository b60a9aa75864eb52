"""A process in namespaces of its own with mounts as a container's first process has them.

Run as a program: `inside.py DIRECTORY NODE STEPS...`, each step one of those below. It says "ready" when they are
done, and stays until its standard input ends. DIRECTORY becomes its root.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

# linux/mount.h, linux/sched.h.
RDONLY, NOSUID, NOEXEC, REMOUNT, BIND, REC, PRIVATE = 0x1, 0x2, 0x8, 0x20, 0x1000, 0x4000, 0x40000
DETACH = 2
NEWNS, NEWUSER = 0x20000, 0x10000000


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """Do as the system call of this name does. Raises OSError."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} {target}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Do as the system call does. Raises OSError."""
    if _libc.unshare(flags) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"unshare: {os.strerror(number)}")


def hook(root: str, node: str) -> None:
    """Mount the host's node over an empty file, as NVIDIA's hook does."""
    target = Path(root + node)
    target.touch()
    mount(node, str(target), flags=BIND)
    mount("", str(target), flags=BIND | REMOUNT | RDONLY | NOSUID | NOEXEC)


def directory(root: str, _: str) -> None:
    """Mount a directory with a file system of its own at its root, and one at its /dev."""
    mount("", "/", flags=REC | PRIVATE)
    mount("tmpfs", root, "tmpfs")
    for name in ("dev", "host", "old"):
        Path(root, name).mkdir()
    mount("tmpfs", root + "/dev", "tmpfs")


def enter(root: str, _: str) -> None:
    """Make the directory the root of all, as a runtime does."""
    os.chdir(root)
    if _libc.pivot_root(b".", b"old") < 0:
        raise OSError(ctypes.get_errno(), "pivot_root")
    os.chroot(".")
    if _libc.umount2(b"/old", DETACH) < 0:
        raise OSError(ctypes.get_errno(), "umount /old")


def expose(root: str, _: str) -> None:
    """Let it see the host's /dev, at /host."""
    mount("/dev", root + "/host", flags=BIND)


def mounts(_: str, __: str) -> None:
    """Go to a mount namespace, as a runtime does."""
    unshare(NEWNS)


def user(_: str, __: str) -> None:
    """Go to a user namespace with mounts of its own, as a runtime does, and as anybody can."""
    unshare(NEWUSER | NEWNS)
    for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")


def own_user(_: str, __: str) -> None:
    """Do the same where there is no /proc."""
    unshare(NEWUSER | NEWNS)


def own_mount(_: str, node: str) -> None:
    """Mount a node that it sees as the hook would have."""
    Path(node).touch()
    mount(f"/host{node[len('/dev') :]}", node, flags=BIND)
    mount("", node, flags=BIND | REMOUNT | RDONLY | NOSUID | NOEXEC)


STEPS: dict[str, Callable[[str, str], None]] = {
    "mounts": mounts,
    "user": user,
    "directory": directory,
    "hook": hook,
    "expose": expose,
    "enter": enter,
    "own-user": own_user,
    "own-mount": own_mount,
}


def main() -> None:
    """Take the steps."""
    root, node, *steps = sys.argv[1:]
    for step in steps:
        STEPS[step](root, node)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
