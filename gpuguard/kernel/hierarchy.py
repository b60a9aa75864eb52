"""One mounted cgroup hierarchy: where its units are, how a control group is opened, what an error means."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Optional

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.kernel import nested_v1
from gpuguard.model.container_group import (
    PAYLOAD,
    SLICE,
    UNIT_SUFFIXES,
    ContainerGroup,
    may_be_written,
    may_hold_containers,
    may_hold_payloads,
    no_parent,
    parse,
)
from gpuguard.model.pathname import NO_NAMES

# What the kernel answers for a directory that rmdir(2) is taking away or has taken.
_GONE = {errno.ENOENT, errno.ENODEV, errno.ENOTDIR}
# Beside the slices, in all. The kubelet has one for each pod, and allows 110 of them unless told otherwise.
MOST_DIRECTORIES = 4096
_OTHERS_MAY_WRITE = 0o022

Contained = Callable[[ContainerGroup, int], Optional[bool]]


class Hierarchy:
    """A hierarchy mounted at `root`. Control groups are named as systemd names them.

    `crowded`: the last walk did not look into all of the directories beside the slices, for there are too many.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.crowded = False
        self._prefix = str(root).rstrip("/")

    def units(self, wanted: Callable[[str], bool], contained: Optional[Contained] = None) -> Iterator[tuple[str, int]]:
        """Yield control group and inode of the units whose name is `wanted`, below slices only.

        With `contained` also those of containers without a unit of their own, below directories beside the slices and
        directly below a unit. It is asked about each, with the inode; None: that is to be found out. What lies below a
        container or a user manager is somebody else's, and what anybody but root could have put there does not count.
        Raises CgroupUnreadableError.
        """
        stack, tops = [""], deque[str]()
        while stack:
            group = stack.pop()
            for entry in self._entries(group):
                name = entry.name
                if name.endswith(SLICE):
                    stack.append(f"{group}/{name}")
                elif name.endswith(UNIT_SUFFIXES):
                    if wanted(name):
                        yield f"{group}/{name}", entry.inode()
                    if contained is not None and may_hold_payloads(name) and _roots_alone(entry):
                        yield from self._payloads(f"{group}/{name}", contained)
                elif not group and contained is not None and not no_parent(name) and _roots_alone(entry):
                    tops.append(f"/{name}")
        if contained is not None:
            yield from self._without_units(tops, contained)

    def _payloads(self, unit: str, contained: Contained) -> Iterator[tuple[str, int]]:
        """Yield the containers that Podman has put directly below a unit."""
        for entry in self._entries(unit):
            if entry.name.startswith(PAYLOAD):
                container = parse(f"{unit}/{entry.name}")
                if container is not None and contained(container, entry.inode()) is not False:
                    yield container.control_group, entry.inode()

    def _without_units(self, todo: deque[str], contained: Contained) -> Iterator[tuple[str, int]]:
        """Yield the containers of which systemd knows nothing, below directories beside the slices: the upper first."""
        for _ in range(MOST_DIRECTORIES):
            if not todo:
                break
            group = todo.popleft()
            for entry in self._entries(group):
                control_group = f"{group}/{entry.name}"
                container = parse(control_group)
                answer = container is not None and contained(container, entry.inode())
                if answer is not False:
                    yield control_group, entry.inode()
                if answer is not True and may_hold_containers(control_group) and _roots_alone(entry):
                    todo.append(control_group)
        self.crowded = bool(todo)

    def _entries(self, group: str) -> list[os.DirEntry[str]]:
        """Return the control groups directly below; none when it is gone."""
        try:
            with os.scandir(self._prefix + group) as entries:
                return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:
            if error.errno in _GONE:
                return []
            raise CgroupUnreadableError(f"{group or '/'}: cannot list its control groups: {error.strerror}") from error

    def _children(self, group: str) -> list[str]:
        """Return the name of each control group directly below; none when it is gone."""
        return [entry.name for entry in self._entries(group)]

    def inode(self, control_group: str) -> int:
        """Return the inode of a control group, which its list need not be readable for.

        Raises CgroupGoneError, CgroupUnreadableError.
        """
        with self._open(control_group) as directory:
            return os.fstat(directory).st_ino

    def groups_below(self, control_group: str) -> frozenset[str]:
        """Return the names of the control groups directly below; none when it is gone. Raises CgroupUnreadableError."""
        return frozenset(self._children(control_group))

    def populated(self, control_group: str) -> bool:
        """Whether there is a process in the control group itself that this one's pid namespace can see.

        Raises CgroupGoneError, CgroupUnreadableError.
        """
        with self._open(control_group) as directory:
            try:
                return nested_v1.populated(directory)
            except OSError as error:
                raise self._error(error, control_group, "cannot read cgroup.procs") from error

    @contextlib.contextmanager
    def _open(self, control_group: str, inode: int | None = None) -> Iterator[int]:
        """Open the directory; with `inode`, for writing: refuse anything but that very unit or container."""
        if inode is not None and not may_be_written(control_group):
            raise CgroupUnreadableError(f"{control_group}: not a scope and no container, gpuguard does not write there")
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
        if control_group != "/" and (top or not names or not NO_NAMES.isdisjoint(names) or "\0" in control_group):
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


def _roots_alone(entry: os.DirEntry[str]) -> bool:
    """Whether there are control groups below, and root alone can have put them there."""
    try:
        seen = entry.stat(follow_symlinks=False)
    except OSError:  # gone
        return False
    return nested_v1.has_groups(seen) and seen.st_uid == 0 and not seen.st_mode & _OTHERS_MAY_WRITE
