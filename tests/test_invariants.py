"""What gpuguard promises, by number, and that each promise has tests that would catch its breach.

A test that does carries the marker `invariant(number)`; `pytest -m invariant` runs them all.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

INVARIANTS = {
    1: "Never more than was given: only entitled rules are granted, with the recorded numbers and access.",
    2: "Never less than there was: no deed takes a permission away, not for a microsecond.",
    3: "The kernel is the judge: a repair is what was read back, not what systemd answered.",
    4: "Unknown is a value: what cannot be read opens nothing, closes nothing and teaches nothing.",
    5: "A scope is its cgroup's inode, not its name: a namesake inherits nothing.",
    6: "Only scopes and services are written, never an ancestor, never a slice, never the root.",
    7: "gpuguard's death changes nothing, and what it knew survives a restart.",
    8: "Look first: a healthy protected container sees no write; two that fight end in a pause.",
    9: "A restricted scope stays restricted, and an unrestricted one stays so.",
    10: "Everything is bounded: queues, memory, retries, and the time of each call.",
}


def numbers(path: Path) -> Iterator[int]:
    """Yield the numbers of the invariants that a file's markers name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.invariant":
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, int):
                    yield argument.value


MARKED = [number for path in Path(__file__).parent.rglob("test_*.py") for number in numbers(path)]


@pytest.mark.parametrize("number", INVARIANTS)
def test_each_invariant_has_tests(number: int) -> None:
    """No promise is without a test that would fail if it were broken."""
    assert number in MARKED, f"no test carries the marker invariant({number}): {INVARIANTS[number]}"


def test_no_marker_is_for_an_invariant_that_is_not_there() -> None:
    """Every marker names one of the promises."""
    assert set(MARKED) <= set(INVARIANTS)
