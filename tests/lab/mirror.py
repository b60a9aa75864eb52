"""Where this machine gets its Debian packages from, as apt is configured: mirror and proxies."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

from tests.lab.errors import UnsuitableError

_HELPER = "/usr/lib/apt/apt-helper"  # fetches as apt does: through its proxies, with its certificates


def mirror(suite: str) -> str:
    """Return the first of apt's sources that has this Debian release. Raises UnsuitableError when none has."""
    found = _sources()
    if not found:
        raise UnsuitableError("apt has no sources on this machine: `apt-get --print-uris update` names none")
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "InRelease"
        for source in found:
            done = _run([_HELPER, "download-file", f"{source}/dists/{suite}/InRelease", str(file)])
            if done.returncode == 0 and f"\nCodename: {suite}\n" in file.read_text(encoding="utf-8", errors="replace"):
                return source
    raise UnsuitableError(f"none of apt's sources has Debian's {suite}: {', '.join(found)}")


def proxies() -> dict[str, str]:
    """Return apt's proxies as environment variables for programs other than apt."""
    found = {}
    for scheme in ("http", "https", "ftp"):
        line = _run(["apt-config", "shell", "PROXY", f"Acquire::{scheme}::Proxy"]).stdout.strip()
        value = line.partition("=")[2].strip("'")
        if value and value != "DIRECT":
            found[f"{scheme}_proxy"] = value
    return found


def _sources() -> list[str]:
    """Return the addresses that apt fetches from, in its order; apt reads all its kinds of files."""
    lines = _run(["apt-get", "--print-uris", "update"]).stdout.splitlines()
    found = [match[1] for match in (re.match(r"'(.+)/dists/[^']+/InRelease'", line) for line in lines) if match]
    return list(dict.fromkeys(found))


def _run(argv: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise UnsuitableError(f"{argv[0]} is not there: this is not a Debian or Ubuntu") from error
