"""Asking a program about devices, where no list of rules says what it does."""

from __future__ import annotations

import pytest

from gpuguard.errors import ProgramError
from gpuguard.model.asked import asked
from gpuguard.model.device_program import decode
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.lab import device_programs as shapes
from tests.model.looks import rules


def test_the_widest_access_of_each_device_is_told() -> None:
    """Whatever access a candidate names, what is permitted of its device is told, and of no other device."""
    program = decode(shapes.runc(rules("c 195:0 rw", "c 195:1 rwm", "c 195:2 r", "c 195:3 w", "c *:* m")))
    found = asked(program, rules("c 195:0 r", "c 195:1 m", "c 195:2 rwm", "b 195:0 rwm"))
    assert found == RuleSet(rules("c 195:0 rw", "c 195:0 m", "c 195:1 rwm", "c 195:2 r", "c 195:2 m"))


def test_nothing_is_told_without_candidates() -> None:
    """A program is not asked about what nobody wants to know."""
    assert asked(decode(shapes.runc(rules("c 195:0 rw"))), ()) == RuleSet()


@pytest.mark.parametrize("wide", ["c 195:* rw", "c *:3 rw", "b *:* m"])
def test_more_than_one_device_cannot_be_asked_about(wide: str) -> None:
    """A wildcard is no device."""
    with pytest.raises(ProgramError, match="cannot be asked about all of"):
        asked(decode(shapes.runc(rules("c 195:0 rw"))), [Rule.parse(wide)])
