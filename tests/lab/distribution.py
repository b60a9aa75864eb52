"""Root file systems of other Debian releases, built once and kept: `python -m tests.lab.distribution SUITE…`.

A node is an overlay over one of them (`Node.boot(mode, root("trixie"))`): they are never changed, and what nobody
uses can be deleted at any time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from tests.lab.errors import LabError, UnsuitableError
from tests.lab.keeper import PRIVATE
from tests.lab.machine import missing
from tests.lab.mirror import mirror, proxies

CACHE = Path(os.environ.get("GPUGUARD_LAB_CACHE", "/var/cache/gpuguard-lab"))

_PACKAGES = (
    "busybox-static",
    "ca-certificates",
    "conmon",
    "containerd",
    "dbus",
    "docker.io",
    "iproute2",
    "mount",
    "podman",
    "procps",
    "python3",
    "python3-venv",
    "runc",
    "systemd",
    "util-linux",
)
_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_OPTIONS = ("--variant=minbase", f"--keyring={_KEYS}", "--force-check-gpg")
_PHASES = ("Retrieving InRelease", "Installing core", "Unpacking the base", "Configuring the base")


@dataclass(frozen=True)
class Distribution:
    """A Debian release, and what else its packages need; debootstrap does not resolve virtual packages."""

    suite: str
    version: str
    extra: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        """All packages that are asked for."""
        return tuple(sorted({*_PACKAGES, *self.extra}))

    @property
    def place(self) -> Path:
        """Where it is kept: another recipe gets another place."""
        recipe = "\n".join((self.suite, *_OPTIONS, *self.packages))
        return CACHE / f"{self.suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


DISTRIBUTIONS = {
    one.suite: one
    for one in (
        Distribution("bullseye", "Debian 11"),
        Distribution("bookworm", "Debian 12", ("netavark",)),
        Distribution("trixie", "Debian 13", ("docker-cli", "netavark")),
    )
}


def _why_not() -> Optional[str]:
    if os.geteuid() != 0:
        return "building a distribution needs root; this is an ordinary user"
    if not Path(_KEYS).exists():
        return "Debian's keys are not installed (Debian and Ubuntu: apt-get install debian-archive-keyring)"
    return missing("debootstrap")


def root(suite: str) -> str:
    """Return the root file system of a release; builds it first, which takes a minute and prints what it does.

    Raises UnsuitableError, or LabError when it should have been possible.
    """
    found = DISTRIBUTIONS.get(suite)
    if found is None:
        raise LabError(f"no distribution {suite!r}; there are {', '.join(DISTRIBUTIONS)}")
    if not found.place.exists():
        reason = _why_not()
        if reason is not None:
            raise UnsuitableError(f"cannot build {suite}: {reason}")
        with _exclusive(suite):
            if not found.place.exists():
                _build(found)
    return str(found.place)


def _build(wanted: Distribution) -> None:
    fresh = wanted.place.with_suffix(".new")
    _discard(fresh)  # what a build that was killed has left
    start = time.monotonic()
    try:
        _say(wanted, f"building {wanted.version} (a minute or two)")
        _debootstrap(wanted, fresh)
        for junk in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
            shutil.rmtree(fresh / junk, ignore_errors=True)
        fresh.rename(wanted.place)
    except BaseException:
        _discard(fresh)
        raise
    _say(wanted, f"ready after {time.monotonic() - start:.0f} s: {wanted.place}")


def _debootstrap(wanted: Distribution, target: Path) -> None:
    """Run debootstrap, in a mount namespace of its own, since it mounts, and a pid namespace, to end with this process.

    Raises LabError with the end of what it said.
    """
    spaces = [*PRIVATE[:-1], "--pid", "--fork", "--kill-child", "--"]
    source = [wanted.suite, str(target), mirror(wanted.suite)]
    process = subprocess.Popen(
        [*spaces, "debootstrap", *_OPTIONS, f"--include={','.join(wanted.packages)}", *source],
        env={**os.environ, **proxies(), "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    said: list[str] = []
    try:
        assert process.stdout is not None
        phase = ""
        for line in process.stdout:
            said.append(line)
            now = next((name for name in _PHASES if line.startswith(f"I: {name}")), phase)
            if now != phase:
                _say(wanted, line[3:].split("...")[0].strip())
                phase = now
        status = process.wait()
    finally:
        process.kill()
    if status:
        log = target / "debootstrap/debootstrap.log"
        more = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else ""
        raise LabError(f"debootstrap of {wanted.suite} failed with status {status}: {''.join(said)[-1000:]}\n{more}")


def _discard(tree: Path) -> None:
    """Remove a tree and nothing that is mounted in it."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", str(tree)], check=True)


@contextmanager
def _exclusive(suite: str) -> Iterator[None]:
    """Keep other processes from building the same."""
    CACHE.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (CACHE / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(wanted: Distribution, text: str) -> None:
    print(f"{wanted.suite}: {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Build what is asked for, or all, at the same time."""
    try:
        with ThreadPoolExecutor() as pool:
            for place in pool.map(root, sys.argv[1:] or DISTRIBUTIONS):
                print(place)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
