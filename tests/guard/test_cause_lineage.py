"""Whom a change is put down to, by those who were seen to ask and by what the sentinel tells."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.guard.cause import Causes, Lineage
from gpuguard.model.cause import SYSTEMD, Cause
from gpuguard.model.process import Process
from gpuguard.model.write import ProgramsChanged, Write
from gpuguard.systemd.events import Called

UNIT = "docker-x.scope"
GROUP = f"/system.slice/{UNIT}"
ADMIN = Process(41, "bash", "/usr/bin/bash", native=True)
RELOADER = Process(70, "systemctl", "/usr/bin/systemctl", ("systemctl", "daemon-reload"), native=True)
SETTER = Process(71, "systemctl", "/usr/bin/systemctl", ("systemctl", "set-property", UNIT, "CPUShares=7"), native=True)
RUNC = Process(72, "runc", "/usr/bin/runc", native=True)
NAMELESS = Process(71, "systemctl")


def called(member: str, caller: Lineage, at: float, causes: Causes) -> None:
    """Have the bus tell of a call."""
    unit = UNIT if member == "SetUnitProperties" else None
    causes.called(Called(member, unit, ("CPUShares",) if unit else (), ":1.9", 7), caller, at)


def write(at: float, *, denied: bool = True, requester: Lineage = ()) -> Write:
    """Return a write of systemd's."""
    return Write(GROUP, 7, at, denied, SYSTEMD, requester)


def test_a_write_that_denied_is_what_took_it() -> None:
    """One that only allowed took nothing, nor did one from before the list was seen whole."""
    causes = Causes()
    causes.wrote(write(5.0, denied=False))
    assert causes.of_loss(UNIT, GROUP, 5.5) == Cause()
    causes.wrote(write(5.0, requester=(RELOADER,)))
    assert causes.of_loss(UNIT, GROUP, 5.5, whole_at=4.0).requester == (RELOADER,)
    assert causes.of_loss(UNIT, GROUP, 5.5, whole_at=5.2) == Cause()


@pytest.mark.parametrize(("at", "whole_at"), [(7.0, None), (5.5, 5.2)], ids=["long ago", "before it was whole"])
def test_an_old_hint_is_none(at: float, whole_at: Optional[float]) -> None:
    """It is put down to what comes soon after it, and was not there before."""
    causes = Causes()
    causes.programs_change(ProgramsChanged(5.0, "bash", ADMIN, (ADMIN,)))
    assert causes.of_loss(UNIT, GROUP, 5.5, whole_at=4.0) == Cause("manual", ADMIN, since=5.0)
    assert causes.of_loss(UNIT, GROUP, at, whole_at=whole_at) == Cause()


def test_a_reload_counts_for_more_than_a_hint_of_somebody_else() -> None:
    """Others change programs of their own at any time."""
    causes = Causes()
    causes.reload_began(5.0)
    causes.programs_change(ProgramsChanged(5.1, "bash", ADMIN, (ADMIN,)))
    assert causes.of_loss(UNIT, GROUP, 5.5).cause == "reload"


def test_who_was_seen_waiting_at_the_write_asked_for_the_reload() -> None:
    """Whoever else has asked meanwhile."""
    causes = Causes()
    called("Reload", (ADMIN,), 4.9, causes)
    causes.reload_began(5.0)
    assert causes.of_write(UNIT, write(5.1, requester=(RELOADER, RUNC))).requester == (RELOADER, RUNC)
    assert causes.of_write(UNIT, write(5.1)).requester == (ADMIN,)


def test_an_earlier_call_has_not_asked_for_this_reload() -> None:
    """That reload is long over."""
    causes = Causes()
    called("Reload", (ADMIN,), 1.0, causes)
    causes.reload_began(5.0)
    assert causes.of_write(UNIT, write(5.1)).requester == ()


def test_who_asks_for_something_else_has_not_asked_for_a_reload_that_is_to_come() -> None:
    """A reload that was called for has not begun: what is written now is for the one that waits."""
    causes = Causes()
    called("Reload", (ADMIN,), 4.9, causes)
    assert causes.of_write(UNIT, write(5.0)).cause == "reload"
    found = causes.of_write(UNIT, write(5.0, requester=(SETTER,)))
    assert (found.cause, found.properties, found.requester) == ("property", ("CPUShares",), (SETTER,))


@pytest.mark.parametrize("seen", ["at the write", "among the last programs"])
def test_who_asks_long_after_a_call_is_the_one(seen: str) -> None:
    """What goes past the bus, as systemctl does: runc has called when it created the container."""
    causes = Causes(lambda since: [(SETTER, ADMIN)] if seen != "at the write" and since <= 11.4 else [])
    called("SetUnitProperties", (RUNC,), 10.0, causes)
    found = causes.of_write(UNIT, write(11.5, requester=(SETTER, ADMIN) if seen == "at the write" else ()))
    assert (found.cause, found.requester, found.properties) == ("property", (SETTER, ADMIN), ("CPUShares",))


@pytest.mark.parametrize(("at", "cause"), [(10.4, "runtime"), (10.6, "unknown")])
def test_a_call_is_carried_out_soon(at: float, cause: str) -> None:
    """What comes later, and for nobody that was seen, may be anybody's."""
    causes = Causes()
    called("SetUnitProperties", (RUNC,), 10.0, causes)
    waits_for_another = replace(SETTER, command=("systemctl", "set-property", "y.scope", "A=1"))
    assert causes.of_write(UNIT, write(at)).cause == cause
    assert causes.of_write(UNIT, write(at, requester=(waits_for_another,))).cause == cause


def test_what_is_asked_for_after_a_reload_is_not_put_down_to_it() -> None:
    """Be it that the bus tells of it, or that somebody is seen waiting; one who waits during the reload is another."""
    causes = Causes()
    causes.reload_began(5.0, (RELOADER,))
    assert causes.of_write(UNIT, write(5.1, requester=(SETTER,))).cause == "reload"
    causes.programs_change(ProgramsChanged(5.2, "systemd", None, (SETTER,)))
    causes.reload_ended(5.5)
    assert causes.of_loss(UNIT, GROUP, 5.6).cause == "reload"
    assert causes.of_write(UNIT, write(6.0, requester=(SETTER,))).cause == "property"
    assert causes.of_write(UNIT, write(6.0)).cause == "reload"
    called("SetUnitProperties", (SETTER,), 6.1, causes)
    assert causes.of_loss(UNIT, GROUP, 6.2).cause == "property"


def test_what_is_certain() -> None:
    """A call right before the write; who reloads, and who wrote himself, whatever was called for long before."""
    causes = Causes()
    called("SetUnitProperties", (RUNC,), 10.0, causes)
    own = Write(GROUP, 72, 11.5, denied=True, writer=RUNC, requester=(RUNC, ADMIN))
    update = replace(RUNC, command=("runc", "update", "x"))
    writes = (write(10.2), write(11.5), own, write(11.5, requester=(SETTER,)), write(11.5, requester=(update,)))
    assert [causes.certain(UNIT, one) for one in writes] == [True, False, True, True, False]
    causes.reload_began(11.0, (RELOADER,))
    assert causes.certain(UNIT, write(11.5))


def test_what_gpuguard_declared_itself() -> None:
    """For two seconds, and unless a reload came after it."""
    causes = Causes()
    causes.declared(UNIT, 5.0)
    assert [causes.own(UNIT, 5.1), causes.own(UNIT, 7.1), causes.own("docker-y.scope", 5.1)] == [True, False, False]
    causes.reload_began(5.2)
    assert not causes.own(UNIT, 5.3)


def test_a_runtime_that_has_others_ask() -> None:
    """One that has just ended has no executable any more, and its parent may have; a grandparent asks for nothing."""
    causes = Causes()
    called("SetUnitProperties", (NAMELESS, RUNC), 5.0, causes)
    assert causes.of_write(UNIT, write(5.1)).cause == "runtime"
    called("SetUnitProperties", (NAMELESS, ADMIN, RUNC), 5.0, causes)
    assert causes.of_write(UNIT, write(5.1)).cause == "property"


def test_a_caller_that_was_about_to_end_is_told_as_it_was_seen_before() -> None:
    """By those who keep account of programs, and not another's number of long ago."""
    causes = Causes(lambda since: [(SETTER, ADMIN)] if since <= 4.9 else [])
    called("SetUnitProperties", (NAMELESS,), 5.0, causes)
    assert causes.of_write(UNIT, write(5.1)).requester == (SETTER, ADMIN)
    called("SetUnitProperties", (NAMELESS,), 9.0, causes)
    assert causes.of_write(UNIT, write(9.1)).requester == (NAMELESS,)
