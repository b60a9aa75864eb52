"""/proc/devices, from this project's own machine and made by hand after NVIDIA's drivers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.majors import Majors
from gpuguard.model.rule import BLOCK, CHAR, MAX_MAJOR

DATA = Path(__file__).parent / "data"


def majors(name: str) -> Majors:
    """Read one of the texts in data/: those called handmade were written by hand, the others copied from a kernel."""
    return Majors.parse((DATA / f"{name}.txt").read_text())


REAL = majors("proc-devices-6.18-no-gpu")
NVIDIA_535 = majors("handmade-proc-devices-nvidia-535")
NVIDIA_550 = majors("handmade-proc-devices-nvidia-550")


def test_reads_every_line_of_a_real_kernel() -> None:
    """Each line of the kernel's text that has a number is one driver."""
    text = (DATA / "proc-devices-6.18-no-gpu.txt").read_text()
    assert len(REAL.drivers) == sum(line.strip()[:1].isdigit() for line in text.splitlines())


def test_a_major_may_have_several_names() -> None:
    """The names of one major are all kept: tty has three, NVIDIA's 195 has three from driver 550 on."""
    assert REAL.names(CHAR, 5) == {"/dev/tty", "/dev/console", "/dev/ptmx"}
    assert NVIDIA_535.names(CHAR, 195) == {"nvidia-frontend"}
    assert NVIDIA_550.names(CHAR, 195) == {"nvidia", "nvidiactl", "nvidia-modeset"}


def test_types_are_kept_apart() -> None:
    """A block driver does not lend its name to the character major of the same number."""
    assert NVIDIA_550.names(BLOCK, 195) == {"odd-block"}
    assert REAL.names(CHAR, 7) == {"vcs"}
    assert REAL.names(BLOCK, 7) == {"loop"}
    assert REAL.matching(CHAR, "loop") == frozenset()


@pytest.mark.parametrize(
    ("glob", "found"),
    [
        ("nvidia*", {195, 507, 508, 509}),
        ("nvidia", set()),
        ("nvidia-uvm", {507}),
        ("infiniband_*", {231, 235}),
        ("/dev/*", {4, 5}),
        ("p[tx]*", {128, 136}),
        ("[!a-z]*", {4, 5}),
        ("NVIDIA*", set()),
        ("", set()),
    ],
)
def test_globs_match_whole_names(glob: str, found: set[int]) -> None:
    """A pattern is matched with the whole name, with its case, and a star crosses slashes."""
    assert NVIDIA_535.matching(CHAR, glob) == found


@pytest.mark.parametrize("glob", [r"[\t]*", "[^a]*", "[[:alpha:]]*", "[[.a.]]*", "[[=t=]]*"])
def test_patterns_of_c_alone_match_nothing(glob: str) -> None:
    """A pattern that fnmatch(3) reads otherwise than Python is not believed to match."""
    assert REAL.matching(CHAR, glob) == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "195 nvidia\n",
        "Character devices:\n195\n",
        "Character devices:\nnvidia 195\n",
        "Character devices:\n-195 nvidia\n",
        "Character devices:\n0x10 nvidia\n",
        "Character devices:\n  0 nvidia\n",
        f"Character devices:\n{MAX_MAJOR + 1} nvidia\n",
        "Character devices:\n99999999999999999999 nvidia\n",
        "Character devices:\n\n195 nvidia\n",
        "Other devices:\n195 nvidia\n",
    ],
)
def test_odd_lines_are_skipped(text: str) -> None:
    """A line of another form, or outside a known section, registers nothing."""
    assert Majors.parse(text) == Majors()


def test_an_odd_line_spoils_only_itself_where_the_section_is_sure() -> None:
    """Names with blanks are kept whole; lines after a blank line belong to no section until a header comes."""
    text = "Character devices:\n 10 odd name \n\n 11 lost\nBlock devices:\n  7 loop\n"
    assert Majors.parse(text).drivers == {(CHAR, 10, "odd name"), (BLOCK, 7, "loop")}


@given(st.text() | st.text("Characterblok devs:\n 0123456789").map("Character devices:\n{}".format))
def test_any_text_is_taken(text: str) -> None:
    """No text makes the parser fail, and what it finds are numbers that a rule can hold."""
    assert all(0 < major <= MAX_MAJOR for _, major, _ in Majors.parse(text).drivers)
