"""`gpuguard run`: the daemon, in the foreground."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from gpuguard.cli import codes
from gpuguard.config import Settings, load
from gpuguard.errors import CgroupUnreadableError, ProgramGoneError
from gpuguard.kernel import bpf
from gpuguard.kernel.mode import CgroupMode, detect


def run(args: argparse.Namespace) -> int:
    """Check the configuration and the privileges, then guard until told to stop."""
    settings = load(args.config)
    lacking = list(lacking_privileges(settings, observe_only=args.observe_only))
    if lacking:
        print(f"gpuguard: {'; '.join(lacking)}: run it as root on the node itself", file=sys.stderr)
        return codes.NO_PRIVILEGE
    # Where rich is installed structlog loads it, for tracebacks in colour that nothing here prints: 3 MB.
    sys.modules["rich"] = None  # type: ignore[assignment]  # how Python is told that there is none
    from gpuguard import daemon  # noqa: PLC0415 - the daemon's libraries are slow to import

    daemon.run(settings, args.config, observe_only=args.observe_only)
    return codes.OK


def lacking_privileges(settings: Settings, *, observe_only: bool) -> Iterator[str]:
    """Yield what this process must do and may not. The paths decide, not the user id: a node may be simulated."""
    run_dir = Path(settings.paths.run)
    existing = next(path for path in (run_dir, *run_dir.parents) if path.exists())
    if not os.access(existing, os.W_OK):
        yield f"may not write to {run_dir}, where it remembers what containers were given"
    cgroup = Path(settings.paths.cgroup)
    try:
        mode = detect(cgroup)
    except CgroupUnreadableError:
        return  # that is told when the guard is put together
    if mode is CgroupMode.V2:
        yield from _unreadable(cgroup)
        return
    if observe_only or settings.guard.mode == "observe":
        return
    # On cgroup v1 the root of the hierarchies is a tmpfs that systemd makes read-only.
    devices = cgroup / "devices"
    if not os.access(devices, os.W_OK):
        yield f"may not write to {devices}, where device rules are given back"


def _unreadable(cgroup: Path) -> Iterator[str]:
    """Say why the device programs of cgroup v2 cannot be read."""
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        bpf.query(directory, effective=True)
        # Nothing need be attached there. No program has the id 0, which only who may open programs is told.
        bpf.program(0)
    except ProgramGoneError:
        pass
    except CgroupUnreadableError as error:
        yield str(error)
    finally:
        os.close(directory)
