"""The back-off: how many repairs are made before a pause."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.backoff import Backoff

MAX, WINDOW, PAUSE = 3, 10.0, 30.0


def repairs(backoff: Backoff, moments: Sequence[float]) -> list[float]:
    """Repair at each moment at which it is allowed; return those."""
    made = []
    for now in moments:
        if backoff.may_repair(now):
            backoff.repaired(now)
            made.append(now)
    return made


def test_the_last_repair_that_is_allowed_begins_the_pause() -> None:
    """After `max_repairs` within the window nothing is repaired until the pause is over."""
    backoff = Backoff(MAX, WINDOW, PAUSE)
    assert repairs(backoff, [1, 2, 3, 4, 32.9]) == [1, 2, 3]
    assert backoff.until == 33
    assert repairs(backoff, [33, 34, 35, 36]) == [33, 34, 35]


def test_repairs_far_apart_begin_no_pause() -> None:
    """Repairs that are not within one window of each other can go on for ever."""
    moments = [5.0 * number for number in range(50)]
    assert repairs(Backoff(MAX, WINDOW, PAUSE), moments) == moments


def test_a_single_repair_may_be_the_limit() -> None:
    """With a limit of one, each repair begins a pause."""
    assert repairs(Backoff(1, WINDOW, PAUSE), range(65)) == [0, 30, 60]


@pytest.mark.invariant(10)
@given(st.integers(1, 6), st.lists(st.integers(0, 40), max_size=60).map(sorted))
def test_there_are_never_more_in_a_window(limit: int, moments: list[int]) -> None:
    """However often a repair is wanted, no stretch as long as the window has more than the limit."""
    made = repairs(Backoff(limit, WINDOW, PAUSE), moments)
    moments_of_repair = sorted(set(made))
    assert all(len([one for one in moments_of_repair if begin <= one < begin + WINDOW]) <= limit for begin in made)
