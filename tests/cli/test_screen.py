"""What of a node is seen at once, by who watches it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuguard.cli.screen import excerpt
from gpuguard.cli.status import people
from gpuguard.model.state import State
from tests.cli.made import container, device, node

MANY = node(*(container(f"job{n}", State.PROTECTED, device()) for n in range(200)), container("x", State.LOST))


@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("trouble", [None, "t" * 200])
def test_the_worst_and_the_summary_stay_in_sight(colours: bool, trouble: str) -> None:
    """Of two hundred containers the first fill the screen, but for the summary, also where lines are wrapped."""
    text = people(replace(MANY, trouble=trouble), width=100, colours=colours)
    lines = excerpt(text, 100, 24).splitlines()
    plain = people(replace(MANY, trouble=trouble), width=100).splitlines()
    wrapped = sum(len(line) > 100 for line in plain)
    assert len(lines) == 23 - wrapped
    assert " x " in lines[3]
    summary = next(at for at, line in enumerate(lines) if line == "1 lost, 200 protected")
    assert lines[summary - 2] == f"… {len(plain) - len(lines) + 1} more lines: `gpuguard status` shows all"


def test_what_fits_is_whole() -> None:
    """Nothing is left out of what has room, to the last row."""
    text = people(MANY, width=100)
    rows = len(text.splitlines()) + 1
    assert excerpt(text, 100, rows) == text
    assert excerpt(text, 100, rows - 1) != text
    assert excerpt(people(node()), 100, 24) == people(node())


def test_a_tiny_screen_has_the_summary() -> None:
    """Where there is room for nothing else, that is what is shown."""
    assert excerpt(people(MANY, width=100), 100, 2).splitlines()[-1] == "1 lost, 200 protected"
