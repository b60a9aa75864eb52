"""The guard's scopes as the status and the metrics tell of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.guard.statuses import statuses, summary
from gpuguard.model.observation import Declared
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, DeviceStatus
from gpuguard.model.verdict import Verdict
from tests.guard.made import GPU0, GPU1, GROUP, ID, UNIT, entitled, scope
from tests.model.looks import declaration, rules

DECLARED = declaration("/dev/char/195:0 rw")


def node_of(rule: Rule) -> Optional[str]:
    """Name the node of an NVIDIA device."""
    return f"/dev/nvidia{rule.minor}" if rule.minor == 0 else None


@pytest.mark.invariant(4)
def test_of_one_in_another_group_its_own_list_says_nothing() -> None:
    """Neither what it may use now nor what after a reload."""
    it = scope(State.OPAQUE, known=entitled(GPU0), effective=RuleSet.of(), declared=DECLARED)
    it.record = replace(it.record, elsewhere="/a.slice")
    ((device,),) = (status.devices for status in statuses([it], node_of))
    assert (device.effective, device.declared) == (None, None)


def test_tell_all_of_a_container() -> None:
    """Scope, group, id, runtime, state, reason, its devices in order, and what it has in excess."""
    it = scope(
        known=entitled(GPU1, GPU0),
        effective=RuleSet.of(GPU0, "c 195:2 rw"),
        declared=DECLARED,
        verdict=Verdict(State.PARTIAL, "why", excess=rules("c 195:2 rw")),
    )
    assert statuses([it], node_of) == (
        ContainerStatus(
            UNIT,
            GROUP,
            ID,
            "docker",
            State.PARTIAL,
            (
                DeviceStatus(Rule.parse(GPU0), "/dev/nvidia0", "ledger", effective=True, declared=True),
                DeviceStatus(Rule.parse(GPU1), None, "ledger", effective=False, declared=False),
            ),
            tuple(rules("c 195:2 rw")),
            "why",
        ),
    )


def test_what_is_blocked_is_told() -> None:
    """What another program denies stays denied, whatever systemd writes."""
    blocked = Verdict(State.LOST, "why", lost=rules(GPU0), blocked=rules(GPU0))
    [status] = statuses([scope(known=entitled(GPU0), declared=DECLARED, verdict=blocked)], node_of)
    assert [device.blocked for device in status.devices] == [True]


@pytest.mark.invariant(4)
@pytest.mark.parametrize(
    ("effective", "declared", "told"),
    [
        (None, DECLARED, (None, True)),
        (RuleSet.of(GPU0), None, (True, None)),
        (RuleSet(), declaration(), (False, False)),
        (RuleSet(unrestricted=True), DECLARED, (True, True)),
    ],
)
def test_unknown_is_neither_true_nor_false(
    effective: Optional[RuleSet], declared: Optional[Declared], told: tuple[Optional[bool], Optional[bool]]
) -> None:
    """What cannot be read, and what systemd cannot be asked, is None."""
    (status,) = statuses([scope(known=entitled(GPU0), effective=effective, declared=declared)], node_of)
    (device,) = status.devices
    assert (device.effective, device.declared) == told


def test_what_was_released_and_is_still_in_force_is_told() -> None:
    """A released device that the container may still use is neither its own nor excess, and not concealed."""
    known = replace(entitled(GPU0), released=frozenset({"c 195:1", "c 195:2"}))
    (status,) = statuses([scope(known=known, effective=RuleSet.of(GPU0, GPU1), declared=DECLARED)], node_of)
    assert [device.rule for device in status.devices] == [Rule.parse(GPU0)]
    assert (status.released, status.excess) == ((Rule.parse(GPU1),), ())
    (status,) = statuses([scope(known=known, declared=DECLARED)], node_of)
    assert status.released == ()


def test_a_scope_without_a_state_is_left_out() -> None:
    """A container without guarded devices is not told of; one without a filter is, without devices."""
    bare = scope(State.UNRESTRICTED, effective=RuleSet(unrestricted=True))
    found = statuses([scope(None), bare], node_of)
    assert [(status.state, status.devices) for status in found] == [(State.UNRESTRICTED, ())]


def test_summary_counts_the_gravest_first() -> None:
    """The one line for systemctl status has each state with its number; containers without GPUs do not count."""
    states = [State.PROTECTED, State.LOST, State.PROTECTED, State.AT_RISK]
    scopes = [scope(state, known=entitled(GPU0)) for state in states] + [scope(State.UNRESTRICTED)]
    assert summary(scopes) == "GPU containers: 1 lost, 1 at-risk, 2 protected"


def test_summary_of_nothing() -> None:
    """A node without GPU containers says so."""
    assert summary([]) == "GPU containers: none"
