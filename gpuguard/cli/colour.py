"""Colour on a terminal, and nowhere else."""

from __future__ import annotations

import os
from typing import TextIO

RED = "31"
GREEN = "32"
YELLOW = "33"


def wanted(stream: TextIO) -> bool:
    """Whether to colour what goes to `stream`: a terminal, and NO_COLOR (no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def paint(text: str, colour: str) -> str:
    """Return the text in a colour; "" is none."""
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text
