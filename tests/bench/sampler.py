"""Looks at the device lists of some scopes over and over: `python sampler.py PROCESSOR RULE LIST…`.

For each line that it reads, numbers of LISTs in JSON, it looks at these as fast as it can, one after the other, until
the next line comes, an empty one. Then it prints one line of JSON: `usual` and `longest`, a round; `gaps`, each
[number, start, end] from the first look that misses RULE to the next one that does not, all in ns of the monotonic
clock. It is what a tight-loop opener is for one scope, less exact for being in several: it has a processor of its own.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time

_LOOK = 64  # rounds between two looks at the standard input
_MOST = 1 << 14


def sample(lists: list[tuple[int, int]], rule: bytes) -> dict[str, object]:
    """Look at the lists, by number and descriptor, until there is something to read."""
    since = dict.fromkeys((number for number, _ in lists), 0)
    gaps: list[tuple[int, int, int]] = []
    rounds = longest = 0
    begun = before = time.monotonic_ns()
    while rounds % _LOOK or not select.select([0], [], [], 0)[0]:
        for number, list_ in lists:
            now = time.monotonic_ns()
            if rule not in os.pread(list_, _MOST, 0):
                since[number] = since[number] or now
            elif since[number]:
                gaps.append((number, since[number], now))
                since[number] = 0
        now = time.monotonic_ns()
        rounds, longest, before = rounds + 1, max(longest, now - before), now
    gaps += [(number, start, time.monotonic_ns()) for number, start in since.items() if start]
    return {"usual": (before - begun) // max(rounds, 1), "longest": longest, "gaps": gaps}


def main() -> None:
    """Sample whenever told to."""
    processor, rule, *paths = sys.argv[1:]
    os.sched_setaffinity(0, {int(processor)})
    lists = [os.open(path, os.O_RDONLY) for path in paths]
    print("ready", flush=True)
    source = os.fdopen(0, "rb", buffering=0)
    while line := source.readline():
        if not line.strip():
            continue
        print(json.dumps(sample([(number, lists[number]) for number in json.loads(line)], rule.encode())), flush=True)


if __name__ == "__main__":
    main()
