"""The process in the container's device cgroup: `python probe.py CGROUP DIRECTORY NODE once|loop`.

Enters CGROUP, then opens NODE in DIRECTORY. "once" prints the errno, 0 for success. "loop" prints "ready", opens as
fast as it can until its standard input closes, and prints one line of JSON: `opens`; `failures`, by errno; `gaps`,
each [start, end, whether it ended], in nanoseconds of the monotonic clock, from the start of the first denied open to
the start of the next one that is not.
"""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

_LOOK = 1024  # opens between two looks at the standard input


def attempt(node: str) -> int:
    """Open the node for reading and writing, close it, and return the errno."""
    try:
        os.close(os.open(node, os.O_RDWR))
    except OSError as error:
        return error.errno or 0
    return 0


def loop(node: str) -> dict[str, Any]:
    """Open the node over and over and return what came of it."""
    failures: Counter[int] = Counter()
    gaps: list[tuple[int, int, bool]] = []
    opens = 0
    since = 0
    while not opens or opens % _LOOK or not select.select([0], [], [], 0)[0]:
        start = time.monotonic_ns()
        result = attempt(node)
        opens += 1
        if result == errno.EPERM:
            since = since or start
        elif since:
            gaps.append((since, start, True))
            since = 0
        if result not in (0, errno.ENXIO):
            failures[result] += 1
    if since:
        gaps.append((since, time.monotonic_ns(), False))
    return {"opens": opens, "failures": failures, "gaps": gaps}


def main() -> None:
    """Enter the cgroup and open."""
    cgroup, directory, node, how = sys.argv[1:]
    os.chdir(directory)
    Path(cgroup, "cgroup.procs").write_text("0", encoding="ascii")
    if how == "once":
        print(attempt(node))
    else:
        print("ready", flush=True)
        print(json.dumps(loop(node)))


if __name__ == "__main__":
    main()
