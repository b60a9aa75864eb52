"""`gpuguard release`: forget an entitlement on purpose."""

from __future__ import annotations

import argparse
import asyncio
import sys

from gpuguard.cli import codes
from gpuguard.cli.settings import load
from gpuguard.model.reports import ReleaseReport


def run(args: argparse.Namespace) -> int:
    """Release devices of one container, and say what that does not do."""
    from gpuguard.guard import once  # noqa: PLC0415 - its libraries are slow to import, and rendering needs none

    settings, fault = load(args.config)
    print(people(asyncio.run(once.release(settings, args.container, args.devices, fault=fault))))
    if fault is not None:
        print(f"gpuguard: done with the running daemon's settings, since {fault}", file=sys.stderr)
    return codes.OK


def people(report: ReleaseReport) -> str:
    """Return the text for people."""
    lines = [f"{report.scope}: gpuguard no longer gives back {', '.join(report.devices)}"]
    if report.effective:
        lines.append(f"The container may still use {', '.join(report.effective)}: gpuguard takes no permission away.")
    if report.declared:
        lines.append(
            f"systemd still has {', '.join(report.declared)} in its records and allows it again at each reload."
        )
    return "\n".join(lines)
