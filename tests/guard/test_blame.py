"""What entries say of who did it, and the state that a scope was in meanwhile."""

from __future__ import annotations

import pytest

from gpuguard.guard.blame import blame, state_without
from gpuguard.guard.scope import Scope
from gpuguard.model.cause import Cause
from gpuguard.model.process import Process
from tests.guard.made import GPU0, GPU1, entitled, scope
from tests.model.looks import rules

BASH = Process(41, "bash", "/usr/bin/bash", control_group="/user.slice/session-3.scope", native=True)


def test_nobody_is_known() -> None:
    """Only the cause is said."""
    fields = blame(Cause())
    assert fields.pop("cause") == "unknown"
    assert set(fields.values()) == {None}


def test_a_writer_with_its_unit_and_whom_it_was_for() -> None:
    """Each in a field of its own."""
    asker = Process(70, "systemctl", "/usr/bin/systemctl", ("systemctl", "set-property", "x.scope", "CPUShares=7"))
    assert blame(Cause("property", BASH, (asker, BASH), ("CPUShares",), 1.0)) == {
        "cause": "property",
        "property": ["CPUShares"],
        "writer": "bash",
        "writer_pid": 41,
        "writer_exe": "/usr/bin/bash",
        "writer_unit": "session-3.scope",
        "requester": "systemctl set-property x.scope CPUShares ← bash ← session-3.scope",
    }


def test_an_executable_that_cannot_be_told() -> None:
    """A name is said all the same."""
    fields = blame(Cause("manual", Process(41, "sh")))
    assert (fields["writer"], fields["writer_exe"], fields["writer_unit"]) == ("sh", None, None)


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (scope(known=entitled(GPU0, GPU1)), "partial"),
        (scope(known=entitled(GPU0)), "lost"),
        (scope(known=entitled(GPU0, GPU1, settled=False)), "settling"),
        (scope(), "lost"),
    ],
    ids=["some are left", "none is left", "still starting", "nothing is known"],
)
def test_the_state_of_a_scope_without_some_rules(found: Scope, state: str) -> None:
    """As the judge would have said then."""
    assert state_without(found, rules(GPU0)) == state
