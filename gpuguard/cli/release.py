"""`gpuguard release`: forget an entitlement on purpose."""

from __future__ import annotations

import argparse
import asyncio

from gpuguard.cli import codes
from gpuguard.config import load
from gpuguard.model.reports import ReleaseReport


def run(args: argparse.Namespace) -> int:
    """Release devices of one container, and say what that does not do."""
    from gpuguard.guard import once  # noqa: PLC0415 - its libraries are slow to import, and rendering needs none

    print(people(asyncio.run(once.release(load(args.config), args.container, args.devices))))
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
