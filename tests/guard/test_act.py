"""When a declaration counts as made in vain."""

from __future__ import annotations

import pytest

from gpuguard.guard import act
from gpuguard.model.plan import Futile
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict
from tests.guard.made import scope
from tests.model.looks import declaration, rules

LOST, AT_RISK = rules("c 1:0 rw"), rules("c 1:1 rw")


@pytest.mark.parametrize(
    ("known", "forgotten"),
    [
        (("/dev/char/1:0 rw", "/dev/char/1:1 rw"), False),
        (("/dev/char/1:0 rw",), True),  # what it was told
        (("/dev/char/1:1 rw",), True),  # what it was believed to know, and somebody has taken meanwhile
    ],
)
def test_systemd_was_made_to_forget(known: tuple[str, ...], *, forgotten: bool) -> None:
    """Then it is told once more: it has not refused anything."""
    made = scope(declared=declaration(*known), verdict=Verdict(State.PARTIAL, lost=LOST, at_risk=AT_RISK))
    assert act._forgotten(made) is forgotten


def test_what_was_made_in_vain_is_what_it_was_made_for() -> None:
    """What was taken while it was made is not a part of it, and is declared by the next one."""
    verdict = Verdict(State.PARTIAL, lost=LOST, at_risk=AT_RISK)
    made = act._futile(scope(declared=declaration("/dev/char/1:0 rw"), verdict=verdict))
    assert made == Futile(declaration("/dev/char/1:0 rw"), LOST | AT_RISK)


def test_what_another_program_denies_is_not_asked_of_systemd() -> None:
    """It can know that or not: telling it brings nothing back."""
    verdict = Verdict(State.PARTIAL, lost=LOST, blocked=LOST)
    assert not act._forgotten(scope(declared=declaration(), verdict=verdict))
