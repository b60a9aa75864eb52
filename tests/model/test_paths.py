"""All paths of a program at once, compared with the paths one by one."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ProgramError
from gpuguard.model.device_program import Program, decode
from gpuguard.model.evaluate import permits
from gpuguard.model.lanes import WORDS
from gpuguard.model.paths import Among, Region, follow
from gpuguard.model.rule import Access
from gpuguard.model.steps import KINDS
from tests.lab.random_programs import random_program
from tests.model.test_accepted import GRID, NUMBERS


def holds(among: Among, number: int) -> bool:
    """Whether a number is one of these."""
    return among == number if isinstance(among, int) else number not in among


def inside(region: Region, kind: str, major: int, minor: int, access: Access) -> bool:
    """Whether a question belongs to a region."""
    lane = WORDS.index(KINDS[kind] | access << 16)
    return bool(region.lanes >> lane & 1) and holds(region.major, major) and holds(region.minor, minor)


def compare(program: Program) -> bool:
    """Compare the regions with each single question; return whether the program can be followed."""
    try:
        answers = follow(program)
    except ProgramError:
        return False
    for asked in GRID:
        allowed = [region for region in answers.allowed if inside(region, *asked)]
        denied = [region for region in answers.denied if inside(region, *asked)]
        assert len(allowed) + len(denied) == 1, asked
        assert bool(allowed) == permits(program, *asked), asked
    return True


@given(st.randoms())
def test_random_programs(choose: random.Random) -> None:
    """Each question has one answer, and it is the one that running the program gives."""
    compare(decode(random_program(choose, plain=choose.random() < 0.9, numbers=range(NUMBERS))))


def test_many_random_programs_can_be_followed() -> None:
    """The test above is not empty."""
    choose = random.Random(1)  # noqa: S311  # a test's dice
    programs = [decode(random_program(choose, 30, plain=True, numbers=range(NUMBERS))) for _ in range(300)]
    assert sum(compare(program) for program in programs) > 150
