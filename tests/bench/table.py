"""Figures as a table that people read and Markdown understands."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a titled table, each column as wide as its widest cell."""
    grid = [header, *rows]
    widths = [max(len(row[column]) for row in grid) for column in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths)) + " |" for row in grid]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join([f"\n{title}", "", *lines])


def spread(microseconds: Sequence[float]) -> str:
    """Return median and maximum, in microseconds or, from 10 ms on, in milliseconds."""
    if not microseconds:
        return "none"
    unit, scale = ("ms", 1000) if max(microseconds) >= 10_000 else ("µs", 1)
    return f"{median(microseconds) / scale:.0f}, {max(microseconds) / scale:.0f} {unit}"
