"""Opens device nodes from inside many control groups, and prints each errno: one process for all of them.

As tests/lab/probe.py does for one. It runs without the package: python -I opener.py DIRECTORY <JSON
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def attempt(node: str) -> int:
    """Open a node without waiting for anything, and return the errno."""
    try:
        os.close(os.open(node, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
    except OSError as error:
        return error.errno or 0
    return 0


def inside(cgroup: str, nodes: list[str], end: int) -> None:
    """Enter a control group, open the nodes, and write what came of it."""
    Path(cgroup, "cgroup.procs").write_text("0", encoding="ascii")
    os.write(end, json.dumps([attempt(node) for node in nodes]).encode())


def main() -> None:
    """Read {cgroup: [node, ...]} and print {cgroup: [errno, ...]}."""
    os.chdir(sys.argv[1])
    answers = {}
    for cgroup, nodes in json.load(sys.stdin).items():
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                inside(cgroup, nodes, writer)
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            answers[cgroup] = json.loads(answer.read())
        os.waitpid(child, 0)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
