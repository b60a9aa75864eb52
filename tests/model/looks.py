"""Made-up looks and entitlements, and what hypothesis draws them from. Character major 1 is the guarded one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional

from hypothesis import strategies as st

from gpuguard.model.device_classes import Guarded
from gpuguard.model.deviceallow import NodeFacts, declared_rules, merge
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Declared, Observation
from gpuguard.model.rule import CHAR, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.unit import DeviceAllow, DevicePolicy
from tests.model.strategies import CLOSE_RULES, ENTRIES

guarded = Guarded(frozenset({(CHAR, 1)}))

FACTS = NodeFacts(252)
SCOPE = "docker-x.scope"
GROUP = f"/system.slice/{SCOPE}"


def rules(*lines: str) -> frozenset[Rule]:
    """Return rules from their lines."""
    return frozenset(map(Rule.parse, lines))


def declaration(
    *entries: str, policy: DevicePolicy = DevicePolicy.STRICT, disk: Optional[Iterable[str]] = None
) -> Declared:
    """Return what systemd 252 makes of entries such as "/dev/char/1:0 rw"; `disk` are rules."""
    parsed = tuple(map(_entry, entries))
    return declared(policy, parsed, None if disk is None else RuleSet.of(*disk))


def declared(policy: DevicePolicy, entries: tuple[DeviceAllow, ...], disk: Optional[RuleSet] = None) -> Declared:
    """Return what systemd 252 makes of a policy and entries."""
    return Declared(declared_rules(policy, entries, FACTS), disk, policy, entries)


def _entry(text: str) -> DeviceAllow:
    path, _, access = text.partition(" ")
    return DeviceAllow(path, Rule.parse(f"c 0:0 {access}").access)


def spell(declared: Declared, wanted: Iterable[Rule]) -> tuple[tuple[DeviceAllow, ...], tuple[Rule, ...]]:
    """Merge as systemd 252 wants it."""
    return merge(declared.policy, declared.entries, wanted, FACTS, disk=declared.disk)


def look(
    effective: Optional[RuleSet] = None,
    declared: Optional[Declared] = None,
    *,
    at: float = 100.0,
    inode: int = 7,
    group: str = GROUP,
    invocation: str = "",
    started: Optional[float] = None,
    refusal: Optional[str] = None,
    trouble: Optional[str] = None,
    starting: Optional[bool] = None,
) -> Observation:
    """Return a look at docker-x.scope; an `effective` of None is one that could not be read."""
    return Observation(
        SCOPE, group, inode, at, effective, declared, invocation, started, refusal, trouble, starting=starting
    )


def entitlement(
    *lines: str,
    settled: bool = True,
    struck: bool = False,
    released: Iterable[str] = (),
    inode: int = 7,
    group: str = GROUP,
    invocation: str = "",
    quiet_since: float = 90.0,
) -> Entitlement:
    """Return the entitlement of docker-x.scope to some rules."""
    return Entitlement(
        SCOPE, group, inode, invocation, rules(*lines), frozenset(released), settled, struck, quiet_since, 1.0
    )


LISTS = st.none() | st.just(RuleSet(unrestricted=True)) | st.frozensets(CLOSE_RULES, max_size=5).map(RuleSet)
FILTERED = st.frozensets(CLOSE_RULES, max_size=5).map(RuleSet)
GUARDED_RULES = st.frozensets(CLOSE_RULES.filter(guarded), max_size=4)
INVOCATIONS = st.sampled_from(["", "a", "b"])
DECLARED = st.builds(
    declared,
    st.sampled_from(DevicePolicy),
    st.lists(ENTRIES, max_size=4, unique_by=lambda entry: entry.path).map(tuple),
    st.none() | FILTERED,
)
LOOKS = st.builds(
    look,
    LISTS,
    at=st.integers(0, 8).map(float),
    inode=st.sampled_from([7, 8]),
    group=st.sampled_from([GROUP, "/other.slice/docker-x.scope"]),
    invocation=INVOCATIONS,
    started=st.none() | st.integers(0, 8).map(float),
    starting=st.none() | st.booleans(),
)
FULL_LOOKS = st.builds(
    look,
    LISTS,
    st.none() | DECLARED,
    refusal=st.none() | st.just("must not be told"),
)
# Looks at which something can be declared.
OPEN_LOOKS = st.builds(look, FILTERED, DECLARED)
ENTITLEMENTS = st.builds(
    Entitlement,
    st.just(SCOPE),
    st.just(GROUP),
    st.just(7),
    INVOCATIONS,
    GUARDED_RULES,
    st.frozensets(st.sampled_from(["c 1:0", "c 1:1"])),
    st.booleans(),
    st.booleans(),
    st.integers(0, 8).map(float),
    st.just(1.0),
)
