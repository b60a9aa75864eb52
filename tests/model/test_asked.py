"""Asking a program about devices, where no list of rules says what it does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ProgramError
from gpuguard.model import asked as asked_module
from gpuguard.model.asked import asked
from gpuguard.model.device_program import decode
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from tests.lab import device_programs as shapes
from tests.lab.random_programs import random_program
from tests.model.looks import rules
from tests.model.test_accepted import GRID


def test_the_widest_access_of_each_device_is_told() -> None:
    """Whatever access a candidate names, what is permitted of its device is told, and of no other device."""
    program = decode(shapes.runc(rules("c 195:0 rw", "c 195:1 rwm", "c 195:2 r", "c 195:3 w", "c *:* m")))
    found = asked(program, rules("c 195:0 r", "c 195:1 m", "c 195:2 rwm", "b 195:0 rwm"))
    assert found == RuleSet(rules("c 195:0 rw", "c 195:0 m", "c 195:1 rwm", "c 195:2 r", "c 195:2 m"))


@pytest.mark.invariant(1)
def test_an_access_of_which_a_part_is_denied_is_not_told() -> None:
    """A rule for rwm would say that O_WRONLY passes; here it does not, though O_RDWR does."""
    spec = [(Rule.parse("c 195:* rwm"), True), (Rule.parse("c 195:0 w"), False)]
    found = asked(decode(shapes.crun(spec)), rules("c 195:0 rw", "c 195:1 rw"))
    assert found == RuleSet(rules("c 195:0 rm", "c 195:1 rwm"))


@pytest.mark.invariant(1)
@given(st.randoms())
def test_never_more_than_the_program_permits(choose: random.Random) -> None:
    """Whatever a program does: what is told of a device is permitted."""
    program = decode(random_program(choose, numbers=range(3)))
    told = asked(program, [Rule("c", major, minor, Access.RW) for major in range(4) for minor in range(4)])
    for kind, major, minor, access in GRID:
        if told.covers(Rule(kind, major, minor, access)):
            assert permits(program, kind, major, minor, access)


def test_nothing_is_told_without_candidates() -> None:
    """A program is not asked about what nobody wants to know."""
    assert asked(decode(shapes.runc(rules("c 195:0 rw"))), ()) == RuleSet()


@pytest.mark.parametrize("wide", ["c 195:* rw", "c *:3 rw", "b *:* m"])
def test_more_than_one_device_cannot_be_asked_about(wide: str) -> None:
    """A wildcard is no device."""
    with pytest.raises(ProgramError, match="cannot be asked about all of"):
        asked(decode(shapes.runc(rules("c 195:0 rw"))), [Rule.parse(wide)])


@pytest.mark.invariant(10)
def test_asking_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long program and many devices are more than one look may take."""
    program = decode(shapes.runc(rules(*(f"c 195:{minor} rw" for minor in range(16)))))
    every = [Rule("c", 195, minor, Access.RW) for minor in range(16)]
    assert len(asked(program, every)) == len(every)
    monkeypatch.setattr(asked_module, "MAX_STEPS", 1000)
    with pytest.raises(ProgramError, match="more than 1000 steps"):
        asked(program, every)
