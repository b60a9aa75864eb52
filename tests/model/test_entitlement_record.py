"""Learning from what the runtime's own files say of a container."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.device_filter import DeviceFilter, Owner
from gpuguard.model.entitlement import Entitlement, learn, note_drivers, unlearn
from gpuguard.model.grant import Grant, Source
from gpuguard.model.majors import Majors
from gpuguard.model.observation import Observation
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.runtime_record import RuntimeRecord
from tests.model.looks import ENTITLEMENTS, GROUP, GUARDED_RULES, LOOKS, entitlement, guarded, look, rules
from tests.model.programs import look_at, runtime

NOW = 1_700_000_000.0
SETTLE = 2.0
STRIPPED = RuleSet.of("c 5:0 rwm")


def record(*lines: str, by: Source = Source.SPEC, since: float = NOW - 60.0) -> RuntimeRecord:
    """Return what a runtime's file says: these rules are granted."""
    grants = tuple(Grant(rule, by, "a file") for rule in rules(*lines))
    return RuntimeRecord(path="/config.json", since=since, grants=grants)


def learnt(
    known: Optional[Entitlement], seen: Observation, said: RuntimeRecord, stale: Iterable[Rule] = ()
) -> Optional[Entitlement]:
    """Learn from one look, with a settle time of 2 s."""
    return learn(
        known, seen, guarded, settle=SETTLE, reloading=False, wall_clock=NOW, record=said, stale=frozenset(stale)
    )


@pytest.mark.parametrize("by", [Source.SPEC, Source.REQUEST])
def test_what_was_lost_before_is_known_from_the_files(by: Source) -> None:
    """A container that was stripped before anybody looked is entitled to what its runtime gave it."""
    known = learnt(None, look(STRIPPED), record("c 1:0 rw", by=by))
    assert known is not None
    assert known.rules == rules("c 1:0 rw")
    assert known.source(Rule.parse("c 1:0 rw")) is by
    assert not known.settled


@pytest.mark.invariant(1)
def test_what_nobody_guards_is_nobodys_entitlement() -> None:
    """Other devices in the files are not learnt."""
    assert learnt(None, look(STRIPPED), record("c 5:1 rw")) is None
    known = learnt(None, look(STRIPPED), record("c 5:1 rw", "c 1:0 rw"))
    assert known is not None
    assert known.rules == rules("c 1:0 rw")


@pytest.mark.invariant(1)
def test_without_the_files_nothing_is_known_of_it() -> None:
    """Nothing is guessed for a stripped container."""
    assert learnt(None, look(STRIPPED), RuntimeRecord()) is None


@pytest.mark.invariant(1)
def test_a_hook_that_is_at_work_is_not_overtaken() -> None:
    """While the runtime starts the container, and for the settle time, what is granted is the runtime's to write."""
    assert learnt(None, look(STRIPPED, starting=True), record("c 1:0 rw")) is None
    assert learnt(None, look(STRIPPED), record("c 1:0 rw", since=NOW - 1.0)) is None


def test_what_is_in_force_is_of_the_ledger() -> None:
    """What was seen is the stronger source."""
    known = learnt(None, look(RuleSet.of("c 1:0 rw")), record("c 1:0 rw", "c 1:1 rw"))
    assert known is not None
    assert {str(rule): known.source(rule).value for rule in known.rules} == {"c 1:0 rw": "ledger", "c 1:1 rw": "spec"}


def test_a_settled_entitlement_takes_the_files_too() -> None:
    """Files that could not be read at first, or that an older gpuguard did not read, are believed later."""
    known = learnt(entitlement("c 1:0 rw"), look(RuleSet.of("c 1:0 rw")), record("c 1:1 rw"))
    assert known == replace(entitlement("c 1:0 rw", "c 1:1 rw"), by_spec=rules("c 1:1 rw"))


@pytest.mark.invariant(1)
def test_settles_without_what_the_files_grant() -> None:
    """Nobody may be there to give it back: a guard that only observes must come to call it lost."""
    both = learnt(None, look(RuleSet.of("c 1:1 rw")), record("c 1:0 rw"))
    assert both is not None
    assert both.rules == rules("c 1:0 rw", "c 1:1 rw")
    told = learnt(both, look(RuleSet.of("c 1:1 rw"), at=both.quiet_since + SETTLE), record("c 1:0 rw"))
    assert told is not None
    assert told.settled
    stripped = learnt(both, look(STRIPPED, at=both.quiet_since + SETTLE), record("c 1:0 rw"))
    assert stripped is not None
    assert not stripped.settled


def test_what_was_released_stays_so() -> None:
    """A device that was taken away on purpose is not given back because the specification names it."""
    known = entitlement("c 1:0 rw", released=["c 1:1"])
    assert learnt(known, look(RuleSet.of("c 1:0 rw")), record("c 1:1 rw")) == known


@pytest.mark.invariant(1)
def test_what_the_runtimes_own_program_denies_was_not_given() -> None:
    """On cgroup v2 the runtime's program is the better witness of what it has given."""
    denying = DeviceFilter(GROUP, 7, Owner.RUNTIME, STRIPPED)
    seen = replace(look(STRIPPED), writable=False, filters=(denying,))
    assert learnt(None, seen, record("c 1:0 rw")) is None


def test_settles_without_what_is_stale() -> None:
    """A rule that nobody gives back any more is not waited for."""
    known = entitlement("c 1:0 rw", "c 1:1 rw", settled=False)
    seen = look(RuleSet.of("c 1:0 rw"))
    assert learnt(known, seen, RuntimeRecord()) == known
    settled = learnt(known, seen, RuntimeRecord(), stale=rules("c 1:1 rw"))
    assert settled is not None
    assert settled.settled


@pytest.mark.invariant(1)
@given(st.none() | ENTITLEMENTS, LOOKS, GUARDED_RULES)
def test_every_rule_was_known_seen_or_granted(
    before: Optional[Entitlement], seen: Observation, granted: frozenset[Rule]
) -> None:
    """No rule comes from anywhere else, and none with other numbers or access."""
    known = learnt(before, seen, record(*map(str, granted)))
    if known is None:
        return
    sources = set(granted) | set(seen.effective or ()) | (before.rules if before is not None else set())
    assert known.rules <= sources
    assert known.by_spec <= granted
    assert not {rule.device for rule in granted} & known.released & {rule.device for rule in known.by_spec}


def test_drivers_are_noted_once() -> None:
    """Who had a major when it was learnt is kept, whoever has it later."""
    first = note_drivers(entitlement("c 1:0 rw"), Majors.parse("Character devices:\n  1 mem\n  5 tty\n"))
    assert first.drivers == {("c", 1, "mem")}
    assert note_drivers(first, Majors.parse("Character devices:\n  1 other\n")) == first
    assert note_drivers(entitlement("c 1:0 rw"), Majors()).drivers == frozenset()


@pytest.mark.invariant(1)
def test_no_driver_is_noted_of_a_stale_rule() -> None:
    """The one that has its major now is not the one that it was given for."""
    majors = Majors.parse("Character devices:\n  1 mem\n  5 tty\n")
    noted = note_drivers(entitlement("c 1:0 rw", "c 5:0 rw"), majors, rules("c 5:0 rw"))
    assert noted.drivers == {("c", 1, "mem")}


@pytest.mark.invariant(1)
def test_what_was_released_stays_so_when_the_rest_is_refused() -> None:
    """On cgroup v2 nothing may be left of what was seen: what was released is remembered all the same."""
    known = entitlement("c 1:0 rw", settled=False, released=["c 1:1"])
    seen = look_at(runtime("c 1:1 rw"))
    known_then = learnt(known, seen, record("c 1:1 rw"))
    assert known_then is not None
    assert not known_then.rules
    assert known_then.released == {"c 1:1"}
    assert learnt(known_then, seen, record("c 1:1 rw", "c 1:* rw")) == known_then


@pytest.mark.invariant(1)
def test_what_was_released_does_not_come_back_with_what_a_container_has_given_itself() -> None:
    """It is still in force when the container writes its own list, and is none of what it is entitled to."""
    known = entitlement("c 1:2 rw", "c 1:3 rw", settled=False, released=["c 1:1"])
    left = unlearn(known, RuleSet.of("c 1:3 rw"), rules("c 1:1 rw", "c 1:2 rw"))
    assert left.rules == rules("c 1:2 rw")


@pytest.mark.invariant(1)
def test_what_was_released_does_not_come_back_as_a_part_of_more() -> None:
    """A wildcard in the files would open it as well."""
    known = entitlement("c 1:2 rw", released=["c 1:1"])
    assert learnt(known, look(RuleSet.of("c 1:2 rw")), record("c 1:* rw")) == known
