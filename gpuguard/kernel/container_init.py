"""A container's first process: its mounts, and whether it is in the namespaces that the runtime made.

Namespaces are told by ioctl_ns(2): NS_GET_USERNS and NS_GET_PARENT, which only look.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Optional

from gpuguard.model.membership import memberships
from gpuguard.model.mounts import ContainerInit, HostDev, parse_mountinfo
from gpuguard.model.pathname import within

# linux/nsfs.h: _IO(0xb7, 1) and _IO(0xb7, 2).
_GET_USERNS, _GET_PARENT = 0xB701, 0xB702
_MAX_BYTES = 1 << 20
_HELD = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC

_Namespace = tuple[int, int]


class ContainerInits:
    """Looks at first processes through a /proc that has the host's numbers; `dev` is the host's /dev."""

    def __init__(self, proc: Path, dev: Path) -> None:
        self._proc = proc
        self._dev = dev

    def host_dev(self) -> Optional[HostDev]:
        """Return how mountinfo names what is in the host's /dev; None where that cannot be told."""
        text = _read(str(self._proc / "self/mountinfo"))
        points = parse_mountinfo(text) if text is not None else None
        try:
            dev = str(self._dev.resolve(strict=True))
            number = self._dev.stat().st_dev
        except (OSError, RuntimeError):
            return None
        device = f"{os.major(number)}:{os.minor(number)}"
        above = [point for point in points or () if within(dev, point.path)]
        if not above:
            return None
        # The last of those that are mounted the deepest is the one that is seen.
        deepest = max(len(point.path) for point in above)
        point = [point for point in above if len(point.path) == deepest][-1]
        if point.device != device:
            return None
        return HostDev(device, (point.root.rstrip("/") + dev[len(point.path.rstrip("/")) :]).rstrip("/"))

    def look(self, pid: int, control_group: str) -> Optional[ContainerInit]:
        """Return what is seen of a container's first process; None unless it is in that control group, or below.

        None as well when it has ended, or may not be looked at. What is read is of one and the same process: that of
        the directory that is held, whoever gets its number.
        """
        if pid <= 0:
            return None
        with ExitStack() as opened:
            try:
                process = os.open(self._proc / str(pid), _HELD)
                opened.callback(os.close, process)
                groups = memberships(_read("cgroup", process) or "")
                if not any(within(group, control_group) for _, group in groups):
                    return None
                user = _open(opened, "ns/user", process)
                mounts = _open(opened, "ns/mnt", process)
                owner = _namespace_of(opened, mounts, _GET_USERNS)
                depth = self._depth(opened, user)
                shared = _identity(mounts) in {self._of("1", "mnt"), self._of("self", "mnt")}
                mountinfo = _read("mountinfo", process)
                # A process can change its namespaces while it is looked at: these must be those of before.
                again = (_link("ns/user", process), _link("ns/mnt", process))
                if mountinfo is None or again != (_identity(user), _identity(mounts)):
                    return None
            except (OSError, OverflowError):
                return None
            return ContainerInit(mountinfo, depth, owner == _identity(user), shared)

    def _depth(self, opened: ExitStack, user: int) -> Optional[int]:
        # Its own user namespace is the host's: in another one it could not do its work.
        host = self._of("self", "user")
        if host is None:
            return None
        if _identity(user) == host:
            return 0
        return 1 if _namespace_of(opened, user, _GET_PARENT) == host else None

    def _of(self, process: str, kind: str) -> Optional[_Namespace]:
        try:
            status = (self._proc / process / "ns" / kind).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino


def _open(opened: ExitStack, name: str, directory: int) -> int:
    descriptor = os.open(name, _READ, dir_fd=directory)
    opened.callback(os.close, descriptor)
    return descriptor


def _identity(descriptor: int) -> _Namespace:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _link(name: str, directory: int) -> _Namespace:
    status = os.stat(name, dir_fd=directory)
    return status.st_dev, status.st_ino


def _namespace_of(opened: ExitStack, namespace: int, request: int) -> Optional[_Namespace]:
    """Return the namespace that another one belongs to; None for one out of reach: above this process's own."""
    try:
        descriptor = fcntl.ioctl(namespace, request)
    except OSError:
        return None
    opened.callback(os.close, descriptor)
    return _identity(descriptor)


def _read(path: str, directory: Optional[int] = None) -> Optional[str]:
    """Return a text of /proc, None when it cannot be had or is too long to be one of a container."""
    parts: list[bytes] = []
    left = _MAX_BYTES + 1
    try:
        file = os.open(path, _READ, dir_fd=directory)
    except OSError:
        return None
    try:
        while left > 0:
            part = os.read(file, min(left, 1 << 16))
            if not part:
                return b"".join(parts).decode("utf-8", "surrogateescape")
            parts.append(part)
            left -= len(part)
    except OSError:
        return None
    finally:
        os.close(file)
    return None
