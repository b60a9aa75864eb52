"""The bench runs and prints its tables; what it measures is asserted nowhere."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.bench import table
from tests.lab.fixtures import need_node
from tests.lab.node import ROOT

LEAST = ["--gaps=1", "--tries=3", "--seconds=1", "--scopes=1,2", "--turns=1", "--crowd=2", "--heals=1", "--polled=2,3"]
LEAST += ["--samples=1", "--units=200", "--herd=3", "--reloads=1"]


@pytest.mark.node
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("modes", "parts", "tables"),
    [
        ("v1", ["gaps", "declaring", "opens"], 3),
        ("v1", ["first-loss"], 1),
        ("v1", ["storm"], 3),  # the outages take a minute: polls of 5 s are part of them
        ("v2", ["opens", "healing"], 2),
        ("v1 v2", ["footprint", "polls"], 4),
    ],
)
def test_every_part_prints_its_table(modes: str, parts: list[str], tables: int) -> None:
    """`python -m tests.bench PART…` ends well and prints one table for each part and cgroup mode."""
    for mode in modes.split():
        need_node(mode)
    alone = [] if " " in modes else [f"--cgroup={modes}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", *parts, *alone, *LEAST],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n|---") == tables


def test_unknown_part_is_refused() -> None:
    """A part that there is not is an error that names the parts that there are."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "speed"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "no part speed" in done.stderr
    assert "outages" in done.stderr


def test_table_is_aligned() -> None:
    """Columns are as wide as their widest cell, and the result is a Markdown table below its title."""
    text = table.table("Title", ["a", "long"], [["wide cell", "1"]])
    assert text == "\nTitle\n\n| a         | long |\n|-----------|------|\n| wide cell | 1    |"


@pytest.mark.parametrize(
    ("lengths", "text"),
    [([], "none"), ([80.4], "80, 80 µs"), ([70, 80, 9999], "80, 9999 µs"), ([5000, 20000], "12, 20 ms")],
)
def test_spread_chooses_its_unit(lengths: list[float], text: str) -> None:
    """Median and maximum are in microseconds, and in milliseconds when the maximum is 10 ms or more."""
    assert table.spread(lengths) == text
