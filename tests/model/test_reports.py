"""What the commands tell of their deeds."""

from __future__ import annotations

from typing import Optional

import pytest

from gpuguard.model.reports import Repair
from gpuguard.model.state import State


@pytest.mark.parametrize(
    ("after", "error", "settled"),
    [
        (State.PROTECTED, None, True),
        (State.UNRESTRICTED, None, True),
        (State.AT_RISK, None, False),
        (State.OPAQUE, None, False),
        (State.PROTECTED, "systemd refuses", False),
    ],
)
def test_settled_is_a_repair_that_left_nothing_to_do(after: State, error: Optional[str], settled: bool) -> None:
    """Only a protected or unrestricted container without an error is done with."""
    assert Repair("docker-x.scope", "x", State.LOST, after, error=error).settled is settled
