"""What a loss is put down to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuguard.guard.cause import Causes
from gpuguard.model.cause import SYSTEMD, Cause
from gpuguard.model.process import Process
from gpuguard.model.write import ProgramsChanged
from gpuguard.systemd.events import Called

UNIT = "docker-x.scope"
GROUP = f"/system.slice/{UNIT}"
CALL = Called("SetUnitProperties", UNIT, ("CPUShares",), ":1.9", 7)
UNKNOWN = Cause()


@pytest.fixture
def causes() -> Causes:
    """Causes of which nothing has happened."""
    return Causes()


def test_nothing_happened(causes: Causes) -> None:
    """A loss that nothing was seen to cause is of unknown cause."""
    assert causes.of_loss(UNIT, GROUP, 5.0) == UNKNOWN
    assert not causes.reloading(5.0)


def test_a_reload_under_way(causes: Causes) -> None:
    """While a reload goes on a loss is its doing, since its beginning."""
    causes.reload_began(1.0)
    assert causes.reloading(2.0)
    assert causes.of_loss(UNIT, GROUP, 2.0) == Cause("reload", SYSTEMD, since=1.0)


def test_a_reload_that_is_over(causes: Causes) -> None:
    """Shortly after a reload a loss is put down to it, later no more."""
    causes.reload_began(1.0)
    assert causes.reload_ended(4.0) == "reload"
    assert not causes.reloading(4.0)
    assert causes.of_loss(UNIT, GROUP, 5.9) == Cause("reload", SYSTEMD, since=1.0)
    assert causes.of_loss(UNIT, GROUP, 6.0) == UNKNOWN


def test_a_reload_that_left_the_list_whole(causes: Causes) -> None:
    """What was seen whole after a reload was not taken by it, however soon afterwards it is lost."""
    causes.reload_began(1.0)
    causes.reload_ended(4.0)
    assert causes.of_loss(UNIT, GROUP, 4.5, whole_at=4.2) == UNKNOWN
    assert causes.of_loss(UNIT, GROUP, 4.5, whole_at=0.5) == Cause("reload", SYSTEMD, since=1.0)


def test_a_reload_whose_beginning_was_missed(causes: Causes) -> None:
    """Without its first signal a reload counts from its last."""
    assert causes.reload_ended(4.0) == "reload"
    assert causes.of_loss(UNIT, GROUP, 4.5) == Cause("reload", SYSTEMD, since=4.0)


def test_a_reload_whose_end_was_missed(causes: Causes) -> None:
    """A reload of which nothing more is heard is over some time, and blamed no more."""
    causes.reload_began(1.0)
    assert not causes.reloading(301.0)
    assert causes.of_loss(UNIT, GROUP, 301.0) == UNKNOWN


def test_a_reload_whose_end_is_not_told_is_over() -> None:
    """When the signals break off in a reload, nothing waits for its end: containers can settle."""
    causes = Causes()
    causes.reload_began(1.0)
    causes.lost_sight()
    assert not causes.reloading(2.0)


def test_a_reexec(causes: Causes) -> None:
    """When another process takes systemd's name in the middle, it is a daemon-reexec."""
    causes.reload_began(1.0)
    causes.manager_replaced()
    assert causes.of_loss(UNIT, GROUP, 1.5) == Cause("reexec", SYSTEMD, since=1.0)
    assert causes.reload_ended(2.0) == "reexec"
    assert causes.of_loss(UNIT, GROUP, 2.5) == Cause("reexec", SYSTEMD, since=1.0)


def test_a_reload_after_a_reexec(causes: Causes) -> None:
    """The next reload is a reload again."""
    causes.reload_began(1.0)
    causes.manager_replaced()
    causes.reload_ended(2.0)
    causes.reload_began(3.0)
    assert causes.reload_ended(4.0) == "reload"


def test_a_bus_that_came_back_is_no_reexec(causes: Causes) -> None:
    """A change of systemd's name before a reload began says nothing about that reload."""
    causes.manager_replaced()
    causes.reload_began(3.0)
    assert causes.reload_ended(4.0) == "reload"


def test_a_property_change(causes: Causes) -> None:
    """Properties that were set explain the loss of that unit alone, for a short time."""
    causes.called(CALL, (), 1.0)
    assert causes.of_loss(UNIT, GROUP, 2.9) == Cause("property", SYSTEMD, properties=("CPUShares",), since=1.0)
    assert causes.of_loss(UNIT, GROUP, 3.0) == UNKNOWN
    assert causes.of_loss("docker-y.scope", GROUP, 1.5) == UNKNOWN


def test_a_property_change_that_left_the_list_whole(causes: Causes) -> None:
    """What was seen whole well after a call was not taken by it; right after it systemd may not have come to it yet."""
    causes.called(CALL, (), 1.0)
    assert causes.of_loss(UNIT, GROUP, 2.5, whole_at=1.6) == UNKNOWN
    assert causes.of_loss(UNIT, GROUP, 2.5, whole_at=1.4).cause == "property"
    runc = Process(72, "runc", "/usr/bin/runc", native=True)
    causes.programs_change(ProgramsChanged(2.4, "runc", runc, (runc,)))
    assert causes.of_loss(UNIT, GROUP, 2.5, whole_at=1.6) == Cause("runtime", runc, since=2.4)
    assert causes.of_loss(UNIT, GROUP, 2.5, whole_at=1.4).cause == "property"


def test_a_reload_explains_more_than_a_property_change(causes: Causes) -> None:
    """Where both were seen, the reload is the cause."""
    causes.called(CALL, (), 1.0)
    causes.reload_began(1.0)
    causes.reload_ended(1.2)
    assert causes.of_loss(UNIT, GROUP, 1.3).cause == "reload"


@pytest.mark.invariant(10)
def test_what_is_remembered_is_bounded(causes: Causes) -> None:
    """Anybody may set properties of any number of units: only the last thousand are remembered."""
    for number in range(5000):
        causes.called(replace(CALL, unit=f"docker-{number}.scope"), (), 1.0)
    causes.called(replace(CALL, unit="docker-4000.scope"), (), 1.0)
    assert len(causes._calls) == 1024
    assert causes.of_loss("docker-4000.scope", GROUP, 1.0).cause == "property"
    assert causes.of_loss("docker-3.scope", GROUP, 1.0) == UNKNOWN


ASKER = (Process(9, "systemctl", command=("systemctl", "daemon-reload")), Process(8, "upgrade"))


@pytest.mark.parametrize("told", [True, False])
def test_who_was_seen_waiting_at_one_change_of_many(causes: Causes, told: bool) -> None:
    """On cgroup v2 a reload goes on when its asker is gone; the bus may have told of the call, not of the caller."""
    if told:
        causes.called(Called("Reload", None, (), ":1.9", 9), (), 0.9)
    causes.reload_began(1.0)
    causes.programs_change(ProgramsChanged(1.1, "systemd", None, ASKER))
    causes.programs_change(ProgramsChanged(1.2, "systemd"))
    causes.reload_ended(1.3)
    assert causes.of_loss(UNIT, GROUP, 1.4, whole_at=1.15) == Cause("reload", SYSTEMD, ASKER, since=1.0)
    assert causes.of_loss(UNIT, GROUP, 9.0).requester == ()


def test_a_caller_who_was_gone_when_the_bus_told(causes: Causes) -> None:
    """Who was seen waiting for the change of this unit is the one; who waits for that of another is not."""
    caller = (Process(9, "busctl", command=("busctl", "org.freedesktop.systemd1", "SetUnitProperties", UNIT)),)
    other = (Process(9, "systemctl", command=("systemctl", "set-property", "y.scope", "A=1")),)
    causes.called(CALL, (), 1.0)
    causes.programs_change(ProgramsChanged(1.1, "systemd", None, caller))
    causes.programs_change(ProgramsChanged(1.2, "systemd", None, other))
    causes.programs_change(ProgramsChanged(1.3, "systemd"))
    assert causes.of_loss(UNIT, GROUP, 1.4) == Cause("property", SYSTEMD, caller, ("CPUShares",), 1.0)


def test_a_caller_who_was_about_to_end_when_the_bus_told(causes: Causes) -> None:
    """It is told as it was seen when it waited."""
    causes.called(Called("Reload", None, (), ":1.9", 9), (Process(9, "systemctl"),), 0.9)
    causes.programs_change(ProgramsChanged(0.95, "systemd", None, ASKER))
    causes.reload_began(1.0)
    assert causes.of_loss(UNIT, GROUP, 1.1).requester == ASKER


def test_a_caller_beside_one_who_was_seen_waiting(causes: Causes) -> None:
    """Anybody may call, and be refused: who was seen waiting for systemd comes first."""
    causes.called(Called("Reload", None, (), ":1.9", 7), (Process(7, "python3"),), 0.95)
    causes.reload_began(1.0, ASKER)
    assert causes.of_loss(UNIT, GROUP, 1.1).requester == ASKER


def test_a_container_that_calls_bpf_hides_nobody(causes: Causes) -> None:
    """The tracer tells of calls that the kernel then refuses: whoever was at work just before is the one."""
    inside = Process(50, "x", "/x", control_group=GROUP.replace("docker-x", f"docker-{'ab' * 32}"))
    admin = Process(51, "bpftool", "/usr/sbin/bpftool", native=True)
    causes.programs_change(ProgramsChanged(1.0, "bpftool", admin, (admin,)))
    for at in (1.1, 1.2):
        causes.programs_change(ProgramsChanged(at, "x", inside, (inside,)))
    assert causes.of_loss(UNIT, GROUP, 1.3) == Cause("manual", admin, since=1.0)
    causes.programs_change(ProgramsChanged(5.0, "x", inside, (inside,)))
    assert causes.of_loss(UNIT, GROUP, 5.1).writer == inside
