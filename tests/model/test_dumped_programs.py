"""Programs of real systemds and runcs come down to the rules that the kernel's own list has on cgroup v1.

The data and how it was obtained: tests/model/data/programs/README.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gpuguard.errors import ProgramError
from gpuguard.model.accepted import accepted
from gpuguard.model.device_program import decode
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import largest_rules

_DATA = Path(__file__).with_name("data") / "programs"


def _dumped() -> dict[str, dict[str, Any]]:
    found = {}
    for file in sorted(_DATA.glob("*.json")):
        for number, program in enumerate(json.loads(file.read_text(encoding="ascii"))["programs"]):
            found[f"{file.stem}-{number}-{program['by']}"] = program
    return found


PROGRAMS = _dumped()
# `c 81:3 r` of runc 1.0.0-rc93 lets an open for reading and writing pass too, which no rule says.
MORE_THAN_ITS_RULES = {"bullseye-docker-rules-1-runc"}


def asked(rules: Iterable[Rule]) -> frozenset[Rule]:
    """Take rules apart into what the kernel asks for, m on its own: `c *:* m` is then seen to be a part of others."""
    parts = (rule.meet(Rule(rule.kind, None, None, part)) for rule in rules for part in (Access.RW, Access.MKNOD))
    return largest_rules(part for part in parts if part is not None)


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - MORE_THAN_ITS_RULES))
def test_program_comes_down_to_the_kernels_list(name: str) -> None:
    """Neither more nor less is accepted than the list says that was in force on v1 by the same commands."""
    program = PROGRAMS[name]
    found = accepted(decode(bytes.fromhex("".join(program["code"]))))
    assert not found.unrestricted
    assert asked(found) == asked(map(Rule.parse, program["rules"]))


@pytest.mark.parametrize("name", sorted(MORE_THAN_ITS_RULES))
def test_program_that_lets_more_pass_is_no_list(name: str) -> None:
    """What passes beyond the rules is not overlooked."""
    with pytest.raises(ProgramError, match="denies some of"):
        accepted(decode(bytes.fromhex("".join(PROGRAMS[name]["code"]))))


def test_there_are_programs_of_every_writer() -> None:
    """Nobody's data went missing."""
    assert len({(name.partition("-")[0], program["by"]) for name, program in PROGRAMS.items()}) == 6
