"""Which files a process has had the kernel mark, to hear of writes to them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from tests.lab.process import children


def marked_below(pid: int, file: Path) -> bool:
    """Whether a child of a process has a fanotify mark on a file: the kernel tells in fdinfo (proc(5))."""
    mark = f"fanotify ino:{file.stat().st_ino:x} "
    for child in children(pid):
        for info in Path(f"/proc/{child}/fdinfo").glob("*"):
            with suppress(FileNotFoundError, ProcessLookupError):  # closed meanwhile
                if mark in info.read_text(encoding="ascii"):
                    return True
    return False
