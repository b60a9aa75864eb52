"""`gpuguard repair`: give back and declare, once, now."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from dataclasses import asdict
from typing import Optional

from gpuguard.cli import codes, colour, status, table
from gpuguard.cli.settings import load
from gpuguard.cli.table import Cell
from gpuguard.model.container_name import short_id
from gpuguard.model.reports import Repair, RepairReport


def run(args: argparse.Namespace) -> int:
    """Repair the named containers or all, and tell what came of it; what failed goes to stderr as well."""
    from gpuguard.guard import once  # noqa: PLC0415 - its libraries are slow to import, and rendering needs none

    settings, fault = load(args.config)
    report = asyncio.run(once.repair(settings, args.containers, dry_run=args.dry_run, fault=fault))
    if args.json:
        print(json.dumps({"version": 1, **asdict(report)}, indent=2))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(people(report, width=width, colours=colour.wanted(sys.stdout)))
    for repair in report.repairs:
        if repair.error is not None:
            print(f"gpuguard: {repair.scope}: {table.printable(repair.error)}", file=sys.stderr)
    if fault is not None:
        print(f"gpuguard: done with the running daemon's settings, since {fault}", file=sys.stderr)
    return exit_code(report)


def exit_code(report: RepairReport) -> int:
    """Return 0 when nothing is left to do, or, in a dry run, when nothing would be."""
    return codes.OK if all(repair.settled for repair in report.repairs) else codes.FAILED


def people(report: RepairReport, *, width: Optional[int] = None, colours: bool = False) -> str:
    """Return the text for people: one row for each container."""
    if not report.repairs:
        return "no GPU container on this node"
    header = ("ID", "NOW", "WOULD BECOME", "WOULD BE DONE") if report.dry_run else ("ID", "BEFORE", "AFTER", "DONE")
    return "\n".join(table.render(header, [_row(repair) for repair in report.repairs], width, colours=colours))


def _row(repair: Repair) -> list[Cell]:
    return [
        Cell(short_id(repair.id)),
        status.state_cell(repair.before),
        status.state_cell(repair.after),
        Cell(", ".join(repair.deeds) or ("nothing" if repair.error else "nothing to do")),
    ]
