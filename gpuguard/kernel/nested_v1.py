"""The control groups below an open one: found and opened by directory descriptors, without a link being followed.

Whoever lives in a container may make any of them, and give it any name.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass

from gpuguard.model.pathname import NO_NAMES

# Groups that are told of, and levels: a container could make any number, and each costs some 20 µs to read.
MOST_GROUPS = 256
MOST_LEVELS = 8

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# kernfs counts two links and one for each control group below.
_NO_GROUPS = 2


@dataclass
class Walk:
    """Goes through all groups below an open directory, each after the one that it is below.

    `cut` tells afterwards whether there are more than were told of. `skip` is the name of one at the top that is left
    out.
    """

    directory: int
    skip: str = ""
    cut: bool = False
    _told: int = 0

    def groups(self) -> Iterator[tuple[str, int]]:
        """Yield the path of each group and its directory, open until the next one. Raises OSError."""
        yield from self._below(self.directory, "", 1)

    def _below(self, directory: int, path: str, level: int) -> Iterator[tuple[str, int]]:
        if os.fstat(directory).st_nlink <= _NO_GROUPS:
            return
        for name in sorted(names(directory, MOST_GROUPS + 1)):
            if level == 1 and name == self.skip:
                continue
            if level > MOST_LEVELS or self._told >= MOST_GROUPS:
                self.cut = True
                return
            with contextlib.suppress(OSError):  # it has just ended
                below = os.open(name, _DIRECTORY, dir_fd=directory)
                try:
                    self._told += 1
                    yield path + name, below
                    yield from self._below(below, f"{path}{name}/", level + 1)
                finally:
                    os.close(below)


def names(directory: int, most: int) -> list[str]:
    """Return the names of the groups directly below an open directory, `most` of them at most. Raises OSError."""
    found: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                found.append(entry.name)
                if len(found) >= most:
                    break
    return found


def has_groups(status: os.stat_result) -> bool:
    """Whether there are groups below the directory that this is the status of."""
    return status.st_nlink > _NO_GROUPS


@contextlib.contextmanager
def opened(directory: int, path: str) -> Iterator[int]:
    """Open a group below an open directory, name by name. Raises OSError."""
    current = os.dup(directory)
    try:
        for name in path.split("/"):
            if name in NO_NAMES or "\0" in name:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            below = os.open(name, _DIRECTORY, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)


def populated(directory: int) -> bool:
    """Whether there is a process in an open group itself that this one's pid namespace can see. Raises OSError."""
    processes = os.open("cgroup.procs", os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=directory)
    try:
        return bool(os.read(processes, 1))
    finally:
        os.close(processes)
