"""What /proc and /dev say of the host's devices and of this boot."""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Optional

from gpuguard.errors import CgroupUnreadableError
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import BLOCK, CHAR


class Host:
    """The host's /proc and /dev, which may be seen under other names."""

    def __init__(self, proc: Path, dev: Path) -> None:
        self._proc = proc
        self._dev = dev

    def devices(self) -> str:
        """Return the text of /proc/devices. Raises CgroupUnreadableError."""
        return self._read("devices")

    def boot_id(self) -> str:
        """Return the id of this boot, "" where the kernel does not tell."""
        try:
            return self._read("sys/kernel/random/boot_id").strip()
        except CgroupUnreadableError:
            return ""

    def number(self, path: str) -> Optional[DeviceNumber]:
        """Return the number of the device node at a path such as "/dev/nvidia0", None without one."""
        if not path.startswith("/dev/"):
            return None
        try:
            status = os.stat(f"{self._dev}/{path[len('/dev/') :]}")  # noqa: PTH116 -- a Path costs more than the call
        except (OSError, ValueError):  # what systemd has as a path need not be one
            return None
        if stat.S_ISCHR(status.st_mode):
            return DeviceNumber(CHAR, os.major(status.st_rdev), os.minor(status.st_rdev))
        if stat.S_ISBLK(status.st_mode):
            return DeviceNumber(BLOCK, os.major(status.st_rdev), os.minor(status.st_rdev))
        return None

    def nodes(self, patterns: Iterable[str]) -> Iterator[tuple[str, DeviceNumber]]:
        """Yield path and number of every device node that matches a glob such as "/dev/nvidia*"."""
        dev = str(self._dev)
        for pattern in patterns:
            # Path.glob() raises on some of the patterns that a site may write, and on a directory that goes meanwhile.
            for found in sorted(glob.glob(glob.escape(dev) + pattern[len("/dev") :])):  # noqa: PTH207
                path = "/dev" + found[len(dev) :]
                number = self.number(path)
                if number is not None:
                    yield path, number

    def _read(self, name: str) -> str:
        path = self._proc / name
        try:
            return path.read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise CgroupUnreadableError(f"{path}: cannot read: {error.strerror}") from error
