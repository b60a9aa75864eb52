"""How many events are followed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.kernel.pace import Pace


def test_a_burst_as_large_as_a_span_is_followed() -> None:
    """The limit is one of the average over a span; the next span begins anew."""
    pace = Pace(3, span=2.0)
    assert [pace.exceeded(100.0) for _ in range(7)] == [False] * 6 + [True]
    assert pace.over
    assert not pace.exceeded(102.0)
    assert not pace.over


@pytest.mark.invariant(10)
@given(st.lists(st.floats(0, 10), max_size=200), st.integers(1, 10))
def test_no_more_than_the_limit(times: list[float], limit: int) -> None:
    """Whenever events come, no span has more than its share of those that are followed."""
    pace = Pace(limit, span=1.0)
    followed = [at for at in sorted(times) if not pace.exceeded(at)]
    for begin in followed:
        # Two spans may touch a stretch of one second.
        assert sum(begin <= at < begin + 1.0 for at in followed) <= 2 * limit
