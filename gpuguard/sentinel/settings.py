"""What the sentinel is started with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """The arguments of the program, in their order.

    `cgroup` is the root of all hierarchies, normally /sys/fs/cgroup; `window` and `pause` are in seconds.
    """

    mode: str
    cgroup: Path
    proc: Path
    fd: int
    max_repairs: int
    window: float
    pause: float

    @classmethod
    def parse(cls, arguments: list[str]) -> Settings:
        """Read the arguments. Raises ValueError: they are of gpuguard's own making."""
        mode, cgroup, proc, fd, max_repairs, window, pause = arguments
        return cls(mode, Path(cgroup), Path(proc), int(fd), int(max_repairs), float(window), float(pause))
