"""A journald for a test: the real one in a mount namespace of its own, or a socket that only listens."""

from __future__ import annotations

import array
import contextlib
import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuguard.report.journal import SOCKET
from tests.report.support import PATIENCE, tool

_PROGRAMS = ("/usr/lib/systemd/systemd-journald", "/lib/systemd/systemd-journald")

# In a namespace of its own /run is empty: nothing of the machine's own journal is touched. Without
# Audit=no journald would turn on the kernel's auditing, which is one for all.
_SCRIPT = f"""
set -eu
mount -t tmpfs tmpfs /run
mkdir -p {Path(SOCKET).parent} /run/systemd/journald.conf.d
printf '[Journal]\\nStorage=volatile\\nAudit=no\\nReadKMsg=no\\nForwardToSyslog=no\\nRateLimitBurst=0\\n' \
    > /run/systemd/journald.conf.d/test.conf
exec "$1"
"""


class Journald:
    """A running journald, seen through /proc/<pid>/root."""

    def __init__(self, pid: int) -> None:
        self._root = Path(f"/proc/{pid}/root")
        self.socket = f"{self._root}{SOCKET}"

    def ready(self) -> bool:
        """Whether it takes entries."""
        return Path(self.socket).exists() and (self._root / "run/log/journal").exists()

    def entries(self, *matches: str) -> list[dict[str, Any]]:
        """Return the entries with the given field=value matches, as journalctl -o json tells them."""
        output = subprocess.run(
            [tool("journalctl"), "-D", str(self._root / "run/log/journal"), "-o", "json", "--all", *matches],
            check=True,
            capture_output=True,
        ).stdout
        return [json.loads(line) for line in output.splitlines()]

    def wait_for(self, *matches: str) -> dict[str, Any]:
        """Return the first entry that matches, once it is there."""
        deadline = time.monotonic() + PATIENCE
        while True:
            found = self.entries(*matches)
            if found:
                return found[0]
            assert time.monotonic() < deadline, f"no entry with {matches}"
            time.sleep(0.05)


@contextlib.contextmanager
def journald() -> Iterator[Journald]:
    """Run a real journald; skip the test where that is impossible."""
    if os.geteuid() != 0:
        pytest.skip("a journald of one's own needs root")
    program = next((program for program in _PROGRAMS if shutil.which(program)), None)
    if program is None:
        pytest.skip("systemd-journald is not installed")
    command = [tool("unshare"), "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "sh", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            server = Journald(process.pid)
            deadline = time.monotonic() + PATIENCE
            while not server.ready():
                if process.poll() is not None:
                    output = process.stdout.read().decode() if process.stdout else ""
                    pytest.skip(f"journald does not run here: {output.strip()}")
                assert time.monotonic() < deadline, "journald does not come up"
                time.sleep(0.02)
            yield server
        finally:
            process.kill()


class Listener:
    """A socket in journald's place that keeps what it gets."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(PATIENCE)

    def entry(self) -> tuple[bytes, bool]:
        """Return the next entry and whether it came as a memory file."""
        size = array.array("i").itemsize
        data, ancillary, _, _ = self.socket.recvmsg(1 << 20, socket.CMSG_SPACE(size))
        if not ancillary:
            return data, False
        ((_, _, rights),) = ancillary
        with open(array.array("i", rights)[0], "rb") as file:  # noqa: PTH123 - a descriptor is no path
            file.seek(0)
            return file.read(), True

    def fields(self) -> list[tuple[str, str]]:
        """Return the fields of the next entry."""
        return decode(self.entry()[0])

    def close(self) -> None:
        """Go away, as a journald that ends does; its path stays."""
        self.socket.close()


def decode(entry: bytes) -> list[tuple[str, str]]:
    """Read an entry as journald does: the inverse of gpuguard.report.journal.encode, written from the protocol."""
    fields = []
    while entry:
        line, _, entry = entry.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = int.from_bytes(entry[:8], "little")
            value, entry = entry[8 : 8 + size], entry[8 + size :]
            assert entry[:1] == b"\n"
            entry = entry[1:]
        fields.append((name.decode(), value.decode()))
    return fields
