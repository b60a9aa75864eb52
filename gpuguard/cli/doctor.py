"""`gpuguard doctor`: the node, its guard and its containers, and what to do about what is not as it should be."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Optional

from gpuguard.cli import colour, status, table
from gpuguard.cli.colour import paint
from gpuguard.cli.settings import load
from gpuguard.cli.table import Cell
from gpuguard.model.doctor import Examination, Gravity, Versions, findings
from gpuguard.model.status import unmanaged
from gpuguard.report.phrases import Phrases

_COLOURS = {Gravity.FINE: colour.GREEN, Gravity.ADVICE: colour.YELLOW, Gravity.BROKEN: colour.RED}

# What is wrong with node and guard comes first; of the containers that are not well there may be hundreds.
_MOST_TOLD = 16


def run(args: argparse.Namespace) -> int:
    """Examine the node and print what was found; the exit code is the gravest of it."""
    from gpuguard.guard import doctor  # noqa: PLC0415 - its libraries are slow to import, and rendering needs none

    examination = asyncio.run(doctor.examine(*load(args.config)))
    if args.json:
        print(json.dumps(document(examination), indent=2))
    else:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        print(people(examination, width=width, colours=colour.wanted(sys.stdout)))
    return int(examination.gravity)


def document(seen: Examination) -> dict[str, object]:
    """Return what --json prints: node and containers as in `status --json`, and the rest."""
    shown: dict[str, object] = {} if seen.node is None else status.document(seen.node)
    return {
        "version": 1,
        "verdict": seen.gravity.name.lower(),
        "versions": _versions(seen.versions),
        "node": shown.get("node"),
        "trouble": seen.trouble,
        "sources": None
        if seen.sources is None
        else [{"name": one.name, "up": one.up, "reason": one.reason} for one in seen.sources],
        "sentinel": None
        if seen.standing is None
        else {"scheduling": seen.standing.scheduling, "reason": seen.standing.reason},
        "links": None if seen.links is None else {"nodes": list(seen.links.nodes), "missing": list(seen.links.missing)},
        "containers": shown.get("containers"),
        "settings": {
            "fault": seen.fault,
            "without_effect": [{"setting": setting, "where": where} for setting, where in seen.without_effect],
        },
        "findings": [
            {"gravity": one.gravity.name.lower(), "text": one.text, "advice": one.advice} for one in findings(seen)
        ],
    }


def _versions(versions: Versions) -> dict[str, object]:
    return {
        "gpuguard": versions.gpuguard,
        "daemon": versions.daemon,
        "python": versions.python,
        "systemd": versions.systemd,
        "kernel": versions.kernel,
    }


def people(seen: Examination, *, width: Optional[int] = None, colours: bool = False) -> str:
    """Return the text for people."""
    sections: tuple[tuple[str, Iterable[str]], ...] = (
        ("Node:", _node(seen)),
        ("Event sources:", _sources(seen, width, colours=colours)),
        ("Containers:", _containers(seen)),
        ("What to do:", _findings(seen, colours=colours)),
    )
    lines: list[str] = []
    for title, section in sections:
        lines += [*([""] if lines else []), title, *(f"  {line}" for line in section)]
    return "\n".join(lines)


def _node(seen: Examination) -> Iterator[str]:
    versions, node = seen.versions, seen.node
    yield f"gpuguard {versions.gpuguard}, Python {versions.python}"
    systemd = "systemd does not answer" if versions.systemd is None else f"systemd {versions.systemd}"
    cgroup = "cgroup cannot be told" if node is None else f"cgroup {node.cgroup}"
    yield f"{cgroup}, {systemd}, kernel {table.printable(versions.kernel)}"
    if node is not None:
        version = "" if versions.daemon is None else f" (version {table.printable(versions.daemon)})"
        yield f"daemon {node.daemon}{version}, mode {node.mode}"
    if seen.standing is not None:
        fields = {"scheduling": seen.standing.scheduling, "reason": seen.standing.reason}
        yield "the sentinel runs {standing}{why}".format_map(Phrases(fields))
    yield _links(seen)


def _links(seen: Examination) -> str:
    if seen.links is None:
        return "guarded device nodes: cannot be told"
    number, missing = len(seen.links.nodes), len(seen.links.missing)
    if not number:
        return "guarded device nodes: none on this host"
    links = "all" if not missing else f"{number - missing}"
    return f"guarded device nodes: {number}, {links} with a link in /dev/char"


def _sources(seen: Examination, width: Optional[int], *, colours: bool) -> Iterable[str]:
    if seen.sources is None:
        running = seen.node is not None and seen.node.daemon == "running"
        return (f"not known: {'the daemon does not tell' if running else 'only a daemon at work has any'}",)
    rows = [
        [Cell(one.name), Cell("up", colour.GREEN) if one.up else Cell("DOWN", colour.RED), Cell(one.reason or "-")]
        for one in seen.sources
    ]
    return table.render(("SOURCE", "STATE", "WHY"), rows, None if width is None else width - 2, colours=colours)


def _containers(seen: Examination) -> Iterator[str]:
    if seen.node is None:
        yield "cannot be told"
        return
    yield status.summary(seen.node) or "none with a GPU on this node"
    yield from map(table.printable, unmanaged(seen.node.containers))


def _findings(seen: Examination, *, colours: bool) -> Iterator[str]:
    found = findings(seen)
    if not found:
        yield paint("Nothing: all is well.", _COLOURS[Gravity.FINE]) if colours else "Nothing: all is well."
    for gravity, alike in groupby(found, lambda one: one.gravity):
        several = list(alike)
        word = gravity.name.lower()
        head = paint(word, _COLOURS[gravity]) if colours else word
        for one in several[:_MOST_TOLD]:
            text = " ".join(table.printable(line.strip()) for line in one.text.splitlines())
            yield f"{head}: {text}"
            yield f"  {table.printable(one.advice)}"
        more = len(several) - _MOST_TOLD
        if more > 0:
            yield f"{head}: {more} more"
            yield "  `gpuguard status` shows every container, `gpuguard doctor --json` every finding."
