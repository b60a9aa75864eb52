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
from gpuguard.cli.table import Cell, Names
from gpuguard.model.container_name import short_id
from gpuguard.model.reports import Repair, RepairReport

_DONE = ("BEFORE", "AFTER", "DONE")
_PLANNED = ("NOW", "WOULD BECOME", "WOULD BE DONE")


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
            print(f"gpuguard: {_called(repair)}: {table.printable(repair.error)}", file=sys.stderr)
    if fault is not None:
        print(f"gpuguard: done with the running daemon's settings, since {fault}", file=sys.stderr)
    return exit_code(report)


def exit_code(report: RepairReport) -> int:
    """Return 0 when nothing is left to do, or, in a dry run, when nothing would be."""
    return codes.OK if all(repair.settled for repair in report.repairs) else codes.FAILED


def people(report: RepairReport, *, width: Optional[int] = None, colours: bool = False) -> str:
    """Return the text for people: one row for each container, the worst first."""
    if not report.repairs:
        return "no GPU container on this node"
    header = ("CONTAINER", "ID", *(_PLANNED if report.dry_run else _DONE))
    rows = [_row(repair) for repair in sorted(report.repairs, key=_gravity)]
    return "\n".join(table.render(header, rows, width, colours=colours, names=Names(0)))


def _gravity(repair: Repair) -> tuple[object, ...]:
    """Return the key of the order: what is left to do comes first, the worst before all."""
    states = status.ORDER.index(repair.after), status.ORDER.index(repair.before)
    return repair.settled, *states, status.natural(repair.full_name), repair.id


def _called(repair: Repair) -> str:
    name = f"{repair.full_name} ({short_id(repair.id)})" if repair.full_name else repair.scope
    return table.printable(name)


def _row(repair: Repair) -> list[Cell]:
    return [
        Cell(repair.full_name or table.NONE),
        Cell(short_id(repair.id)),
        status.state_cell(repair.before),
        status.state_cell(repair.after),
        Cell(", ".join(repair.deeds) or ("nothing" if repair.error else "nothing to do")),
    ]
