"""One scope's device list on cgroup v1, held open: read and written without a path being walked.

Kernel side: security/device_cgroup.c. After its control group is gone every call gets ENODEV.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.kernel.hierarchy import Hierarchy

# More than some 4,000 rules; the kernel gives the whole list to one read(2) that has room for it.
_LONGEST = 1 << 16
# Some 250 rules. Of what systemd has just denied there is nothing left, which is read three times as fast so.
GLANCE = 4096
_FLAGS = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class DeviceFiles:
    """The files of one scope. `list` is open for reading, `allow` and `deny` for writing; deny is watched alone."""

    def __init__(self, hierarchy: OpenHierarchy, control_group: str, directory: int) -> None:
        """Open them in an open directory. Raises OSError."""
        self._hierarchy = hierarchy
        self._control_group = control_group
        self._open: list[int] = []
        try:
            self.list = self._opened("devices.list", os.O_RDONLY, directory)
            self.allow = self._opened("devices.allow", os.O_WRONLY, directory)
            self.deny = self._opened("devices.deny", os.O_WRONLY, directory)
        except OSError:
            self.close()
            raise

    def read(self) -> bytes:
        """Return the list as it is now. Raises CgroupGoneError, CgroupUnreadableError."""
        try:
            text = os.pread(self.list, _LONGEST, 0)
        except OSError as error:
            raise self._hierarchy.error(error, self._control_group, "cannot read devices.list") from error
        if len(text) == _LONGEST:
            raise CgroupUnreadableError(f"{self._control_group}: its device list is too long")
        return text

    def write(self, rules: Iterable[bytes]) -> str:
        """Allow each rule, and return why some could not be, "" when all could. Raises CgroupGoneError."""
        rules = tuple(rules)
        try:
            for rule in rules:
                os.write(self.allow, rule)
        except OSError:  # those after it are to be written all the same; one that is there already may be written again
            return next(filter(None, [self._write(rule) for rule in rules]), "")
        return ""

    def _write(self, rule: bytes) -> str:
        try:
            os.write(self.allow, rule)
        except OSError as error:
            what = self._hierarchy.error(error, self._control_group, f"cannot allow '{rule.decode()}'")
            if isinstance(what, CgroupGoneError):
                raise what from error
            return str(what)
        return ""

    def close(self) -> None:
        """Let go of them."""
        while self._open:
            os.close(self._open.pop())

    def _opened(self, name: str, access: int, directory: int) -> int:
        fd = os.open(name, access | _FLAGS, dir_fd=directory)
        self._open.append(fd)
        return fd


class OpenHierarchy(Hierarchy):
    """The v1 devices hierarchy, of which scopes' files are held open."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.error = self._error

    def files(self, control_group: str, inode: int) -> DeviceFiles:
        """Open the files of that very scope or service. Raises CgroupGoneError, CgroupUnreadableError."""
        with self._open(control_group, inode) as directory:
            try:
                return DeviceFiles(self, control_group, directory)
            except OSError as error:
                raise self._error(error, control_group, "cannot open its device list") from error
