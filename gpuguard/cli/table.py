"""Aligned columns for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from gpuguard.cli.colour import paint

_GAP = "  "
_NARROWEST = 20


@dataclass(frozen=True)
class Cell:
    """A text and its colour."""

    text: str
    colour: str = ""


def printable(text: str) -> str:
    """Return the text without anything that a terminal would obey: names come from outside."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def render(
    header: Sequence[str], rows: Sequence[Sequence[Cell]], width: Optional[int], *, colours: bool
) -> Iterator[str]:
    """Yield the lines of a table, each column as wide as its widest cell.

    The last column is folded at `width` columns of the terminal; None folds nothing.
    """
    table = [[Cell(title) for title in header], *([Cell(printable(c.text), c.colour) for c in row] for row in rows)]
    widths = [max(len(row[column].text) for row in table) for column in range(len(header) - 1)]
    indent = sum(widths) + len(_GAP) * len(widths)
    room = None if width is None else max(width - indent, _NARROWEST)
    for row in table:
        *cells, last = row
        start = "".join(
            (paint(cell.text, cell.colour) if colours else cell.text) + " " * (size - len(cell.text)) + _GAP
            for cell, size in zip(cells, widths)
        )
        for line in _fold(last.text, room):
            yield (start + (paint(line, last.colour) if colours else line)).rstrip()
            start = " " * indent


def _fold(text: str, room: Optional[int]) -> list[str]:
    if room is None:
        return [text]
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
