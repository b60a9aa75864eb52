"""What the list linux.resources.devices of an OCI specification comes down to. Pure.

Its entries are applied in their order. Runtimes and kernels differ where a later entry takes away a part of what an
earlier one gave, and in type "a" with numbers (decision 21). What is returned is what all of them give.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Optional

from gpuguard.errors import RuleError
from gpuguard.model.json_text import Value
from gpuguard.model.rule import BLOCK, CHAR, MAX_MAJOR, MAX_MINOR, Access, Rule

_KINDS = {"": (CHAR, BLOCK), "a": (CHAR, BLOCK), CHAR: (CHAR,), BLOCK: (BLOCK,)}
_WILDCARD = -1
# Each one is compared with all before it. Engines write some dozens; a user may have them write as many as he likes.
MAX_ENTRIES = 1024


@dataclass(frozen=True)
class SpecDevices:
    """`allowed` are the rules that are given for certain, `unrestricted` is a list that gives everything.

    Runtimes add their standard devices (/dev/null, pts, mknod) in any case.
    """

    allowed: frozenset[Rule] = frozenset()
    unrestricted: bool = False


@dataclass(frozen=True)
class _Entry:
    """One entry. `every` is one that is about every device, whatever else it says: runc takes type "a" as that."""

    allow: bool
    every: bool
    rules: tuple[Rule, ...]
    whole: bool


def parse_devices(entries: Value) -> SpecDevices:
    """Apply the entries of the list. Raises SpecError on what the runtimes refuse to start, and on too many."""
    values = list(entries.items())
    if len(values) > MAX_ENTRIES:
        entries.refuse(f"no more than {MAX_ENTRIES} entries")
    devices = SpecDevices()
    for value in values:
        entry = _entry(value)
        devices = _allow(devices, entry) if entry.allow else _deny(devices, entry)
    return devices


def _entry(value: Value) -> _Entry:
    kind = value.member("type")
    kinds = _KINDS.get(kind.text())
    if kinds is None:
        kind.refuse('"a", "b" or "c"')
    major, minor = _number(value.member("major")), _number(value.member("minor"))
    access = _access(value.member("access"))
    allow = value.member("allow").flag()
    if not access:
        # runc does not start such a container. What is given is nothing then, and what is taken everything.
        access = Access.NONE if allow else Access.RWM
    numbered = (major is None or major <= MAX_MAJOR) and (minor is None or minor <= MAX_MINOR)
    rules = tuple(Rule(kind, major, minor, access) for kind in kinds) if access and numbered else ()
    every = len(kinds) > 1
    return _Entry(allow, every, rules, every and major is None and minor is None and access == Access.RWM)


def _number(value: Value) -> Optional[int]:
    number = value.number()
    if number is not None and number < _WILDCARD:
        value.refuse("a device number, or -1 for any")
    return None if number == _WILDCARD else number


def _access(value: Value) -> Access:
    text = value.text()
    try:
        return Access.parse(text) if text else Access.NONE
    except RuleError:
        value.refuse("a combination of r, w and m")


def _allow(devices: SpecDevices, entry: _Entry) -> SpecDevices:
    if entry.whole:
        return SpecDevices(devices.allowed, unrestricted=True)
    # Type "a" with numbers: everything for runc and the kernel's v1, these numbers for others.
    return replace(devices, allowed=devices.allowed.union(entry.rules))


def _deny(devices: SpecDevices, entry: _Entry) -> SpecDevices:
    if entry.every:
        return SpecDevices()
    if not entry.rules:
        return devices
    kept: set[Rule] = set()
    (denied,) = entry.rules
    for rule in devices.allowed:
        if rule.meet(denied) is None:
            kept.add(rule)
        elif rule.device == denied.device and rule.access & ~denied.access:
            kept.add(replace(rule, access=rule.access & ~denied.access))
    return SpecDevices(frozenset(kept))
