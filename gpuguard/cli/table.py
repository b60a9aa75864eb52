"""Aligned columns for people."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Optional

from gpuguard.cli.colour import paint

# In a cell that has nothing to tell.
NONE = "-"
_GAP = "  "
_NARROWEST = 20
_UNBROKEN = "\xa0"  # no printable text has one


@dataclass(frozen=True)
class Cell:
    """A text and its colour."""

    text: str
    colour: str = ""


@dataclass(frozen=True)
class Names:
    """The column of names, which may be long, and how much room it must leave to the last column."""

    column: int
    left: int = _NARROWEST


def printable(text: str) -> str:
    """Return the text without anything that a terminal would obey: names come from outside."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def render(
    header: Sequence[str],
    rows: Sequence[Sequence[Cell]],
    width: Optional[int],
    *,
    colours: bool,
    names: Optional[Names] = None,
) -> Iterator[str]:
    """Yield the lines of a table, each column as wide as its widest cell.

    The last column is folded at `width` columns of the terminal, or below its row where the others leave no room; None
    folds nothing. One of the `names` for which there is no room has a line of its own below its row, whole, to be
    copied.
    """
    table = [[Cell(title) for title in header], *([Cell(printable(c.text), c.colour) for c in row] for row in rows)]
    below = [""] * len(table) if names is None or width is None else _take_out(table, names.column, width - names.left)
    widths = [max(map(len, column)) for column in _columns(table)[:-1]]
    indent = sum(widths) + len(_GAP) * len(widths)
    for row, long_name, (beside, beneath) in zip(table, below, _placed([row[-1].text for row in table], indent, width)):
        *cells, last = row
        start = "".join(
            (paint(cell.text, cell.colour) if colours else cell.text) + " " * (size - len(cell.text)) + _GAP
            for cell, size in zip(cells, widths)
        )
        for line in beside:
            yield (start + (paint(line, last.colour) if colours and line else line)).rstrip()
            start = " " * indent
        if long_name:
            yield _GAP + long_name
        for line in beneath:
            yield _GAP + (paint(line, last.colour) if colours else line)


def _placed(texts: list[str], indent: int, width: Optional[int]) -> Iterator[tuple[list[str], list[str]]]:
    """Yield for each text of the last column the lines that stand in its row, one at least, and those below."""
    if width is None or width - indent >= _NARROWEST:
        yield from ((_fold(text, None if width is None else width - indent), []) for text in texts)
        return
    apart = [len(text) > width - indent for text in texts]
    told = [text != NONE for text in texts]
    told[0] = any(far and tell for far, tell in zip(apart[1:], told[1:]))  # no title above nothing
    for text, far, tell in zip(texts, apart, told):
        if not far:
            yield [text], []
        else:
            yield [""], _fold(text, width - len(_GAP)) if tell else []


def _take_out(table: list[list[Cell]], name: int, width: int) -> list[str]:
    """Take out of a table the names that are too long for it, all where not even the title has room; return them."""
    names = [row[name].text for row in table]
    others = [max(map(len, column)) for at, column in enumerate(_columns(table)[:-1]) if at != name]
    room = width - sum(others) - len(_GAP) * (len(others) + 1)
    if len(names[0]) > room:
        for row in table:
            del row[name]
        return ["" if text == NONE else text for text in names]
    long = [text if len(text) > room else "" for text in names]
    for row, text in zip(table, long):
        if text:
            row[name] = Cell("")
    return long


def _columns(table: list[list[Cell]]) -> list[list[str]]:
    return [[cell.text for cell in column] for column in zip(*table)]


def _fold(text: str, room: Optional[int]) -> list[str]:
    if room is None:
        return [text]
    room = max(room, 1)
    parts = [part + "," for part in text.split(", ")]
    if len(text) > room >= max(map(len, parts)):  # an enumeration: none of its members is cut in two
        text = ", ".join(part[:-1].replace(" ", _UNBROKEN) for part in parts)
    lines = textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return [line.replace(_UNBROKEN, " ") for line in lines] or [""]
