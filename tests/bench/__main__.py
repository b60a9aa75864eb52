"""Measure on a throw-away node and print tables: `python -m tests.bench --help`. Asserts nothing."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

from tests.bench import declaring, first_loss, footprint, gaps, healing, opens, outages, polls, storm
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.prober import Prober

PARTS = {
    "v1": ("outages", "first-loss", "opens", "gaps", "declaring", "footprint", "polls", "storm"),
    "v2": ("opens", "healing", "footprint", "polls"),
}


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    known = "; ".join(f"on cgroup {mode} {', '.join(parts)}" for mode, parts in PARTS.items())
    top = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures gpuguard on throw-away nodes with a real systemd. Needs root, and quiet.",
    )
    top.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure, default all: {known}")
    top.add_argument("--cgroup", choices=tuple(PARTS), help="measure on this version alone")
    top.add_argument("--rounds", type=int, default=10, metavar="N", help="outages: of each trigger (default: 10)")
    top.add_argument("--samples", type=int, default=500, metavar="N", help="first-loss: of each guard (default: 500)")
    top.add_argument("--gaps", type=int, default=100, metavar="N", help="gaps: to be seen in each scope (default: 100)")
    top.add_argument("--tries", type=int, default=300, metavar="N", help="declaring: declarations (default: 300)")
    top.add_argument("--seconds", type=float, default=60, metavar="S", help="footprint, storm: of idling (60)")
    top.add_argument("--scopes", default="1,50,200", metavar="N,…", help="footprint: numbers of GPU scopes (1,50,200)")
    top.add_argument("--turns", type=int, default=20, metavar="N", help="opens: of each trigger (default: 20)")
    top.add_argument("--crowd", type=int, default=50, metavar="N", help="healing: GPU scopes (default: 50)")
    top.add_argument("--heals", type=int, default=5, metavar="N", help="healing: reloads (default: 5)")
    top.add_argument("--polled", default="100,250,500,1000", metavar="N,…", help="polls: GPU scopes (100,250,500,1000)")
    top.add_argument("--units", type=int, default=3000, metavar="N", help="storm: loaded units (default: 3000)")
    top.add_argument("--herd", type=int, default=200, metavar="N", help="storm: GPU scopes (default: 200)")
    top.add_argument("--reloads", type=int, default=32, metavar="N", help="storm: in either class (default: 32)")
    return top


def main() -> int:
    """Measure what is asked for and print each table as soon as it is there."""
    options = parser().parse_args()
    known = {part for parts in PARTS.values() for part in parts}
    wrong = set(options.parts) - known
    if wrong:
        parser().error(f"no part {', '.join(sorted(wrong))}; there are {', '.join(sorted(known))}")
    try:
        for mode, parts in PARTS.items():
            chosen = [part for part in parts if part in (options.parts or known)]
            if chosen and options.cgroup in {None, mode}:
                _measure(mode, chosen, options)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


def _measure(mode: str, chosen: list[str], options: argparse.Namespace) -> None:
    with Node.boot(mode) as node:
        systemd = node.run(["systemctl", "--version"]).stdout.split()[1]
        load = Path("/proc/loadavg").read_text(encoding="ascii").split()[0]
        python = platform.python_version()
        print(f"\ncgroup {mode}, kernel {platform.release()}, systemd {systemd}, Python {python}, load average {load}")
        prober = Prober(node)
        table = {
            "outages": lambda: outages.measure(node, prober, options.rounds),
            "first-loss": lambda: first_loss.measure(node, prober, options.samples),
            "gaps": lambda: gaps.measure(node, prober, options.gaps),
            "declaring": lambda: declaring.measure(node, prober, options.tries),
            "footprint": lambda: footprint.measure(node, _numbers(options.scopes), options.seconds),
            "opens": lambda: opens.measure(node, prober, options.turns),
            "healing": lambda: healing.measure(node, options.crowd, options.heals),
            "polls": lambda: polls.measure(node, _numbers(options.polled)),
            "storm": lambda: storm.measure(node, options.units, options.herd, options.reloads, options.seconds),
        }
        for part in chosen:
            print(table[part](), flush=True)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
