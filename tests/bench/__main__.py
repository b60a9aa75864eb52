"""Measure on a throw-away node and print tables: `python -m tests.bench --help`. Asserts nothing."""

from __future__ import annotations

import argparse
import platform
import sys
from pathlib import Path

from tests.bench import declaring, footprint, gaps, outages
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.prober import Prober

PARTS = ("outages", "gaps", "declaring", "footprint")


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    top = argparse.ArgumentParser(
        prog="python -m tests.bench",
        description="Measures gpuguard on a throw-away node with a real systemd, cgroup v1. Needs root, and quiet.",
    )
    top.add_argument("parts", nargs="*", metavar="PART", help=f"what to measure, default all: {', '.join(PARTS)}")
    top.add_argument("--rounds", type=int, default=10, metavar="N", help="of each trigger (default: 10)")
    top.add_argument("--gaps", type=int, default=100, metavar="N", help="to be seen in each scope (default: 100)")
    top.add_argument("--tries", type=int, default=300, metavar="N", help="declarations (default: 300)")
    top.add_argument("--seconds", type=float, default=60, metavar="S", help="of idling (default: 60)")
    top.add_argument("--scopes", default="1,50", metavar="N,…", help="numbers of GPU scopes (default: 1,50)")
    return top


def main() -> int:
    """Measure what is asked for and print each table as soon as it is there."""
    options = parser().parse_args()
    wrong = set(options.parts) - set(PARTS)
    if wrong:
        parser().error(f"no part {', '.join(sorted(wrong))}; there are {', '.join(PARTS)}")
    chosen = options.parts or PARTS
    counts = tuple(int(count) for count in options.scopes.split(","))
    try:
        with Node.boot("v1") as node:
            systemd = node.run(["systemctl", "--version"]).stdout.split()[1]
            load = Path("/proc/loadavg").read_text(encoding="ascii").split()[0]
            python = platform.python_version()
            print(f"kernel {platform.release()}, systemd {systemd}, Python {python}, load average {load}")
            prober = Prober(node)
            if "outages" in chosen:
                print(outages.measure(node, prober, options.rounds), flush=True)
            if "gaps" in chosen:
                print(gaps.measure(node, prober, options.gaps), flush=True)
            if "declaring" in chosen:
                print(declaring.measure(node, prober, options.tries), flush=True)
            if "footprint" in chosen:
                print(footprint.measure(node, counts, options.seconds), flush=True)
    except LabError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
