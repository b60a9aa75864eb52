"""What `gpuguard repair` tells and how it exits."""

from __future__ import annotations

from typing import Optional

import pytest

from gpuguard.cli.repair import exit_code, people
from gpuguard.model.reports import Repair, RepairReport
from gpuguard.model.state import State
from tests.cli.made import ID

SCOPE = f"docker-{ID}.scope"


def report(after: State, *deeds: str, error: Optional[str] = None, dry_run: bool = False) -> RepairReport:
    """Return the report on one container that had lost its devices."""
    return RepairReport(dry_run, (Repair(SCOPE, ID, State.LOST, after, deeds, error, "main", "ml", "train-0"),))


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (RepairReport(dry_run=False), 0),
        (report(State.PROTECTED, "write c 195:0 rw"), 0),
        (report(State.UNRESTRICTED), 0),
        (report(State.AT_RISK, "write c 195:0 rw", error="no spelling"), 1),
        (report(State.LOST, error="denied by /system.slice"), 1),
        (report(State.PROTECTED, "write c 195:0 rw", dry_run=True), 0),
        (report(State.AT_RISK, "write c 195:0 rw", error="no spelling", dry_run=True), 1),
        (report(State.LOST, dry_run=True), 1),
    ],
)
def test_exit_code(told: RepairReport, code: int) -> None:
    """0 means that nothing is left to do, or in a dry run that nothing would be."""
    assert exit_code(told) == code


def test_the_text_tells_before_after_and_deeds() -> None:
    """One row for each container says who it is, what it was, what it is, and what was done."""
    header, row = people(report(State.PROTECTED, "write c 195:0 rw", "declare /dev/char/195:0 rw")).splitlines()
    assert header.split() == ["CONTAINER", "ID", "BEFORE", "AFTER", "DONE"]
    deeds = "write c 195:0 rw, declare /dev/char/195:0 rw"
    assert row.split(maxsplit=4) == ["ml/train-0/main", ID[:12], "lost", "protected", deeds]


def test_a_dry_run_is_told_as_one() -> None:
    """Nobody takes a plan for a deed: the row says what is now, and what would become of it."""
    header, row = people(report(State.PROTECTED, "write c 195:0 rw", dry_run=True)).splitlines()
    assert header.split() == ["CONTAINER", "ID", "NOW", "WOULD", "BECOME", "WOULD", "BE", "DONE"]
    assert row.split(maxsplit=4)[1:] == [ID[:12], "lost", "protected", "write c 195:0 rw"]


def test_what_is_left_comes_first() -> None:
    """Of many containers those that somebody has to see to are on top, the worst first."""
    states = [State.PROTECTED, State.AT_RISK, State.LOST]
    repairs = tuple(Repair(SCOPE, f"{state.value}.service", State.LOST, state) for state in states)
    failed = Repair(SCOPE, "failed.service", State.PROTECTED, State.PROTECTED, error="systemd refuses")
    rows = people(RepairReport(dry_run=False, repairs=(*repairs, failed))).splitlines()[1:]
    assert [row.split()[1] for row in rows] == [
        "lost.service",
        "at-risk.service",
        "failed.service",
        "protected.service",
    ]


def test_a_container_without_a_name_is_known_by_its_id() -> None:
    """Nothing is made up for it, and a name cannot command the terminal."""
    _, row = people(RepairReport(dry_run=False, repairs=(Repair(SCOPE, ID, State.LOST, State.LOST),))).splitlines()
    assert row.split()[:2] == ["-", ID[:12]]
    hostile = Repair(SCOPE, ID, State.LOST, State.LOST, name="\x1b[31m")
    assert "\x1b" not in people(RepairReport(dry_run=False, repairs=(hostile,)))


def test_nothing_to_repair_is_told() -> None:
    """A node without GPU containers gets a sentence, not an empty table."""
    assert people(RepairReport(dry_run=False)) == "no GPU container on this node"
    assert people(report(State.PROTECTED)).endswith("nothing to do")
