"""What of a text a terminal shows at once."""

from __future__ import annotations

import re
from itertools import accumulate

_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def excerpt(text: str, width: int, height: int) -> str:
    """Return what fits of a text whose first lines matter most, and whose last part is its summary."""
    head, _, tail = text.rpartition("\n\n")
    lines = head.splitlines()
    # A blank line is above the summary, and below it the row where the cursor stays.
    room = height - 2 - sum(_rows(line, width) for line in tail.splitlines())
    taken = list(accumulate(_rows(line, width) for line in lines))
    if not lines or taken[-1] <= room:
        return text
    shown = sum(rows < room for rows in taken)
    return "\n".join([*lines[:shown], f"… {len(lines) - shown} more lines: `gpuguard status` shows all", "", tail])


def _rows(line: str, width: int) -> int:
    """Return how many rows of the terminal a line takes."""
    return max(1, -(-len(_COLOUR.sub("", line)) // width))
