"""One mounted cgroup hierarchy: where its units are, how a control group is opened, what an error means."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError

UNIT_SUFFIXES = (".scope", ".service")

# What the kernel answers for a directory that rmdir(2) is taking away or has taken.
_GONE = {errno.ENOENT, errno.ENODEV, errno.ENOTDIR}
_NO_NAMES = frozenset({"", ".", ".."})


class Hierarchy:
    """A hierarchy mounted at `root`. Control groups are named as systemd names them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = str(root).rstrip("/")

    def units(self, wanted: Callable[[str], bool]) -> Iterator[tuple[str, int]]:
        """Yield control group and inode of the units whose name is `wanted`, below slices only.

        What lies below a service or a scope (a user manager, a nested runtime) is somebody else's.
        Raises CgroupUnreadableError.
        """
        stack = [""]
        while stack:
            group = stack.pop()
            for name, inode in self._children(group):
                if name.endswith(".slice"):
                    stack.append(f"{group}/{name}")
                elif name.endswith(UNIT_SUFFIXES) and wanted(name):
                    yield f"{group}/{name}", inode

    def _children(self, group: str) -> list[tuple[str, int]]:
        """Return name and inode of each control group directly below; none when it is gone."""
        try:
            with os.scandir(self._prefix + group) as entries:
                return [(entry.name, entry.inode()) for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise CgroupUnreadableError(f"{group or '/'}: cannot list its control groups: {error.strerror}") from error

    def inode(self, control_group: str) -> int:
        """Return the inode of a control group, which its list need not be readable for.

        Raises CgroupGoneError, CgroupUnreadableError.
        """
        with self._open(control_group) as directory:
            return os.fstat(directory).st_ino

    def groups_below(self, control_group: str) -> frozenset[str]:
        """Return the names of the control groups directly below; none when it is gone. Raises CgroupUnreadableError."""
        return frozenset(name for name, _ in self._children(control_group))

    def populated(self, control_group: str) -> bool:
        """Whether there is a process in the control group itself that this one's pid namespace can see.

        Raises CgroupGoneError, CgroupUnreadableError.
        """
        with self._open(control_group) as directory:
            try:
                processes = os.open("cgroup.procs", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=directory)
                try:
                    return bool(os.read(processes, 1))
                finally:
                    os.close(processes)
            except OSError as error:
                raise self._error(error, control_group, "cannot read cgroup.procs") from error

    @contextlib.contextmanager
    def _open(self, control_group: str, inode: int | None = None) -> Iterator[int]:
        """Open the directory; with `inode`, for writing: refuse anything but that very unit."""
        if inode is not None and not control_group.endswith(UNIT_SUFFIXES):
            raise CgroupUnreadableError(f"{control_group}: not a scope or a service, gpuguard does not write there")
        directory = self._opened(control_group)
        try:
            if inode is not None and os.fstat(directory).st_ino != inode:
                raise CgroupGoneError(f"{control_group}: another control group has taken this name")
            yield directory
        finally:
            os.close(directory)

    def _opened(self, control_group: str) -> int:
        """Open the directory without following links, for the caller to close."""
        try:
            return os.open(self._path(control_group), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise self._error(error, control_group, "cannot open") from error

    def _path(self, control_group: str) -> str:
        # Text, not Path: each round of the clock asks for every container's.
        top, *names = control_group.split("/")
        if control_group != "/" and (top or not names or not _NO_NAMES.isdisjoint(names) or "\0" in control_group):
            raise CgroupUnreadableError(f"{control_group!r}: not a control group path")
        return self._prefix + control_group

    def _error(self, error: OSError, control_group: str, what: str) -> Exception:
        if error.errno in _GONE:
            return CgroupGoneError(f"{control_group}: {what}: the control group is gone")
        return CgroupUnreadableError(f"{control_group}: {what}: {error.strerror}")

    def forget(self, control_group: str) -> None:
        """Let go of what is kept of a control group."""

    def close(self) -> None:
        """Let go of all that is kept."""
