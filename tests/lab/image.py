"""A container image made on the spot: a static busybox and nothing else."""

from __future__ import annotations

import io
import shutil
import tarfile
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.machine import missing

NAME = "localhost/lab:latest"

_APPLETS = ("sh", "cat", "sleep", "mknod", "ls", "true", "dd", "chmod")


def archive() -> bytes:
    """Return the image's root file system as a tar archive, for `docker import` and `podman import`.

    Raises LabError when there is no static busybox.
    """
    lacking = missing("busybox")
    if lacking is not None:
        raise LabError(f"cannot make an image: {lacking}")
    busybox = Path(shutil.which("busybox") or "/bin/busybox").read_bytes()
    if b"ld-linux" in busybox[:4096]:  # the interpreter is named near the start of a dynamic executable
        raise LabError(
            "cannot make an image: busybox is not static (Debian and Ubuntu: apt-get install busybox-static)"
        )
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as out:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp", "usr"):
            out.addfile(_entry(name, tarfile.DIRTYPE, 0o755))
        program = _entry("bin/busybox", tarfile.REGTYPE, 0o755)
        program.size = len(busybox)
        out.addfile(program, io.BytesIO(busybox))
        for applet in _APPLETS:
            link = _entry(f"bin/{applet}", tarfile.SYMTYPE, 0o777)
            link.linkname = "busybox"
            out.addfile(link)
    return tar.getvalue()


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type = kind
    entry.mode = mode
    return entry
