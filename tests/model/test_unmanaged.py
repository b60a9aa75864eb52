"""Containers that systemd's rewrites do not reach, and those below a unit that they do reach."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.device_filter import DeviceFilter, Owner
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Observation
from gpuguard.model.plan import Plan, plan
from gpuguard.model.refusal import Refusal
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, unmanaged
from gpuguard.model.unit import DevicePolicy
from gpuguard.model.verdict import judge
from tests.model.looks import ENTITLEMENTS, FILTERED, declaration, entitlement, guarded, look, rules, spell

GROUP = f"/docker/{'ab' * 32}"
UNIT = "/system.slice/llm.scope"
PAYLOAD = f"{UNIT}/libpod-payload-{'ab' * 32}"
NULL, GPU0, GPU1 = "c 5:3 rwm", "c 1:0 rw", "c 1:1 rw"
WHY = Refusal.UNMANAGED.value


def without(effective: Optional[RuleSet], *, writable: bool = True) -> Observation:
    """Return a look at a container of the cgroupfs driver."""
    seen = look(effective, None, group=GROUP, refusal=WHY)
    return replace(seen, unit=GROUP[8:], managed=False, writable=writable)


def planned(seen: Observation, known: Entitlement) -> Plan:
    """Return the plan for a look, the first of its kind."""
    return plan(seen, known, judge(seen, known, guarded), guarded=guarded, merge=spell, protect=True)


BOTH = replace(entitlement(GPU0, GPU1), control_group=GROUP)


def test_protected_since_nothing_takes_it() -> None:
    """It is not at risk for ever: that nothing is declared is told, and is no risk."""
    verdict = judge(without(RuleSet.of(NULL, GPU0, GPU1)), BOTH, guarded)
    assert (verdict.state, verdict.reason, verdict.at_risk) == (State.PROTECTED, WHY, frozenset())


def test_lost_is_written_back_at_once() -> None:
    """On cgroup v1: nobody else is about to write it."""
    seen = without(RuleSet.of(NULL, GPU1))
    assert judge(seen, BOTH, guarded).state is State.PARTIAL
    assert planned(seen, BOTH) == Plan(lost=tuple(rules(GPU0)), write=tuple(rules(GPU0)))


def test_lost_on_v2_is_told_with_whom_to_ask() -> None:
    """There is nothing to write, and no systemd to have it written."""
    own = DeviceFilter(GROUP, 7, Owner.RUNTIME, RuleSet.of(NULL))
    seen = replace(without(RuleSet.of(NULL), writable=False), filters=(own,))
    verdict = judge(seen, BOTH, guarded)
    assert verdict.state is State.LOST
    assert verdict.reason is not None
    assert verdict.reason.startswith(f"only its runtime can give it back: {own} denies")
    assert planned(seen, BOTH) == Plan(lost=tuple(sorted(rules(GPU0, GPU1), key=lambda rule: rule.sort_key)))


@pytest.mark.invariant(9)
@given(FILTERED, ENTITLEMENTS, st.booleans())
def test_never_declared(effective: RuleSet, known: Entitlement, writable: bool) -> None:
    """Whatever is seen: systemd is told nothing of a control group that it does not know."""
    seen = without(effective, writable=writable)
    verdict = judge(seen, known, guarded)
    found = plan(seen, known, verdict, guarded=guarded, merge=spell, protect=True)
    assert found.declare == ()
    assert not found.look_again
    assert verdict.at_risk == frozenset()
    assert verdict.state is not State.AT_RISK
    assert set(found.write) == (verdict.lost if writable else set())


def below(unit: RuleSet, runtime: RuleSet) -> Observation:
    """Return a look at a payload on cgroup v2: what systemd's program on its unit and the runtime's on it accept."""
    filters = (
        DeviceFilter(PAYLOAD, 8, Owner.RUNTIME, runtime),
        DeviceFilter(UNIT, 7, Owner.SYSTEMD, unit),
    )
    seen = look(unit.intersection(runtime), declaration(policy=DevicePolicy.CLOSED), group=PAYLOAD)
    return replace(seen, unit="llm.scope", writable=False, filters=filters, unit_group=UNIT)


class TestBelowAUnit:
    """cgroup v2: systemd's program is on the unit, the runtime's on the group below it."""

    def test_what_the_runtime_gave(self) -> None:
        """Systemd's denies take nothing from what was given."""
        seen = below(RuleSet.of(NULL), RuleSet.of(NULL, GPU0))
        assert seen.given == RuleSet.of(NULL, GPU0)
        assert not seen.unrestricted

    def test_of_a_service_too(self) -> None:
        """The group below is new in each run of a service, and so is the runtime's program there."""
        seen = replace(below(RuleSet.of(NULL), RuleSet.of(NULL, GPU0)), unit="llm.service")
        assert seen.given == RuleSet.of(NULL, GPU0)

    def test_what_its_unit_denies_is_declared_to_the_unit(self) -> None:
        """It is not blocked: systemd replaces that program."""
        seen = below(RuleSet.of(NULL), RuleSet.of(NULL, GPU0))
        known = replace(entitlement(GPU0), control_group=PAYLOAD)
        verdict = judge(seen, known, guarded)
        assert (verdict.state, verdict.blocked) == (State.LOST, frozenset())
        second = plan(seen, known, verdict, guarded=guarded, merge=spell, protect=True, second_look=True)
        assert {str(entry) for entry in second.declare} == {"/dev/char/1:0 rw", "/dev/char/5:3 rwm"}

    def test_what_the_units_other_groups_live_by_is_kept(self) -> None:
        """A declaration that takes something from the rest of the unit is not made."""
        seen = below(RuleSet.of(NULL, "c 9:* rw"), RuleSet.of(NULL, GPU0))
        known = replace(entitlement(GPU0), control_group=PAYLOAD)
        verdict = judge(seen, known, guarded)
        found = plan(seen, known, verdict, guarded=guarded, merge=spell, protect=True, second_look=True)
        assert found.declare == ()
        assert found.narrowed == (Rule.parse("c 9:* rw"),)

    def test_what_the_runtime_itself_denies_is_blocked(self) -> None:
        """No declaration brings that back."""
        seen = below(RuleSet.of(NULL, GPU0), RuleSet.of(NULL))
        known = replace(entitlement(GPU0), control_group=PAYLOAD)
        assert judge(seen, known, guarded).blocked == rules(GPU0)


def container(name: str, state: State, reason: Optional[str], *, managed: bool) -> ContainerStatus:
    """Return a container's status."""
    return ContainerStatus(name, f"/docker/{name}", name, "docker", state, reason=reason, managed=managed)


def test_how_many_there_are() -> None:
    """Counted by the reason, those alone whose state needs no other word."""
    assert unmanaged([]) == ()
    assert unmanaged([container("a", State.PROTECTED, WHY, managed=False)]) == (f"1 container: {WHY}",)
    several = [
        container("a", State.PROTECTED, WHY, managed=False),
        container("b", State.PROTECTED, WHY, managed=False),
        container("c", State.LOST, "denied", managed=False),
        container("d", State.PROTECTED, None, managed=True),
        container("e", State.PROTECTED, Refusal.BELOW.value, managed=False),
    ]
    assert unmanaged(several) == (f"2 containers: {WHY}", f"1 container: {Refusal.BELOW.value}")
