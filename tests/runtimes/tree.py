"""A host's files as a test makes them: root's, in a directory of the test's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Optional

import pytest

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: only root's files are believed")


class Tree:
    """The files below `root`; paths are those of the host. Everything is made as root makes it: 0755 and 0644."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.chmod(0o755)

    def path(self, inner: str) -> Path:
        """Return where a file of the host is."""
        return self.root / inner.lstrip("/")

    def directory(self, inner: str) -> Path:
        """Make a directory, and those above it."""
        path = self.root
        for name in inner.strip("/").split("/"):
            path /= name
            if not path.exists():
                path.mkdir(mode=0o755)
                path.chmod(0o755)
        return path

    def write(self, inner: str, text: str, changed: Optional[float] = None) -> Path:
        """Write a file; `changed` sets its mtime. Its ctime is now, which nobody can set."""
        path = self.directory(inner.rpartition("/")[0]) / inner.rpartition("/")[2]
        path.write_text(text, encoding="utf-8", errors="surrogateescape")
        path.chmod(0o644)
        if changed is not None:
            os.utime(path, (changed, changed))
        return path

    def process(self, pid: int, groups: Iterable[str], ticks: int, state: str = "S") -> None:
        """Make a process of this number as /proc shows it, in these control groups."""
        fields = [str(number) for number in range(4, 53)]
        fields[22 - 4] = str(ticks)
        self.write(f"/proc/{pid}/stat", f"{pid} (a) b ({state}) {state} {' '.join(fields)}\n")
        lines = [f"{number}:name{number}:{path}\n" for number, path in enumerate(groups)]
        self.write(f"/proc/{pid}/cgroup", "".join(lines))
