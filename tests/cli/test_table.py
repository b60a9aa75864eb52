"""Tables as they come out at some width."""

from __future__ import annotations

from typing import Optional

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.cli.table import NONE, Cell, Names, render

HEADER = ("STATE", "CONTAINER", "DEVICES")
# What Kubernetes takes, three times.
LONGEST = "/".join(letter * 253 for letter in "abc")


def lines(width: Optional[int], *names: str) -> list[str]:
    """Return a table of containers with these names."""
    rows = [[Cell("lost"), Cell(name), Cell("nvidia0 nvidia1 nvidia2 nvidiactl")] for name in names]
    return list(render(HEADER, rows, width, colours=False, names=Names(1)))


def test_a_long_name_leaves_the_others_in_their_column() -> None:
    """One pod with a name of 253 letters does not tear the table apart: it has a line of its own, whole."""
    assert lines(60, "trainer", LONGEST, NONE) == [
        "STATE  CONTAINER  DEVICES",
        "lost   trainer    nvidia0 nvidia1 nvidia2 nvidiactl",
        "lost              nvidia0 nvidia1 nvidia2 nvidiactl",
        f"  {LONGEST}",
        "lost   -          nvidia0 nvidia1 nvidia2 nvidiactl",
    ]


def test_where_there_is_no_room_every_name_is_below() -> None:
    """On a narrow terminal names and devices are not crammed side by side; who has no name has no line."""
    assert lines(36, "trainer", NONE) == [
        "STATE  DEVICES",
        "  CONTAINER",
        "lost   nvidia0 nvidia1 nvidia2",
        "       nvidiactl",
        "  trainer",
        "lost   nvidia0 nvidia1 nvidia2",
        "       nvidiactl",
    ]


def test_where_the_other_columns_leave_no_room_the_last_is_below() -> None:
    """On a narrow terminal a table is no wider than that; what fits stays in its row, and no title is above nothing."""
    rows = [
        [Cell("c 195:0 rw"), Cell("DENIED"), Cell(text)] for text in (NONE, "you", "program 12 on the scope, and I")
    ]
    header = ("DEVICE", "NOW", "DENIED BY")
    assert list(render(header, rows, 24, colours=False)) == [
        "DEVICE      NOW",
        "  DENIED BY",
        "c 195:0 rw  DENIED  -",
        "c 195:0 rw  DENIED  you",
        "c 195:0 rw  DENIED",
        "  program 12 on the",
        "  scope, and I",
    ]
    assert list(render(header, rows[:1], 24, colours=False)) == ["DEVICE      NOW", "c 195:0 rw  DENIED  -"]


def test_an_enumeration_is_folded_between_its_members() -> None:
    """Of several deeds none is torn apart; one that is longer than a line is, like any text."""
    deeds = "write c 195:0 rw, declare /dev/char/195:0 rw, declare /dev/char/195:255 rw"
    assert list(render(("ID", "DONE"), [[Cell("1"), Cell(deeds)]], 40, colours=False))[1:] == [
        "1   write c 195:0 rw,",
        "    declare /dev/char/195:0 rw,",
        "    declare /dev/char/195:255 rw",
    ]
    assert list(render(("ID", "DONE"), [[Cell("1"), Cell(deeds)]], 26, colours=False))[1:3] == [
        "1   write c 195:0 rw,",
        "    declare",
    ]


def test_a_pipe_gets_one_line_for_each_row() -> None:
    """Where nothing is folded a name stays in its row, so that grep finds both."""
    assert lines(None, LONGEST)[1].split()[:2] == ["lost", LONGEST]


@given(
    st.lists(st.text(st.characters(whitelist_categories=["L"]), max_size=60).map(":{}".format), min_size=1),
    st.integers(1, 200),
)
def test_no_name_is_lost(names: list[str], width: int) -> None:
    """Whatever the width, each name is there once, in order, and no line but that of a name alone is too wide."""
    shown = lines(width, *names)
    words = [word for line in shown for word in line.split() if word.startswith(":")]
    assert words == names
    assert all(len(line) <= max(width, 45) or line.startswith("  ") for line in shown)
