"""What systemd makes of DeviceAllow= entries, and how a device rule is spelt as one.

Follows systemd's cgroup.c and bpf-devices.c (v239 to v258), compared with the devices.list that
systemd 252 writes.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Optional

from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import BLOCK, CHAR, MAX_MAJOR, MAX_MINOR, Access, Rule
from gpuguard.model.ruleset import RuleSet, parse_rules
from gpuguard.model.unit import DeviceAllow, DevicePolicy

# From this version on systemd takes numbers from the text of /dev/char/M:m and char-M, and char-* as
# one class rule. Before, it needs the node or link to exist, and compares "195" and "*" with names.
NUMBERS_FROM_TEXT = 240

# bpf_devices_allow_list_static() in bpf-devices.c. The devices 0:0 are /run/systemd/inaccessible/.
_STANDARD = parse_rules(
    (
        "c 1:3 rwm",  # null
        "c 1:5 rwm",  # zero
        "c 1:7 rwm",  # full
        "c 1:8 rwm",  # random
        "c 1:9 rwm",  # urandom
        "c 5:0 rwm",  # tty
        "c 5:2 rwm",  # ptmx
        "c 136:* rw",  # pts
        "c 0:0 rwm",
        "b 0:0 rwm",
    ),
)

# Decimal without a leading zero: systemd reads 010 as octal and 0x10 as hexadecimal, and nobody writes them.
_DECIMAL = r"(0|[1-9][0-9]{0,6})"
_BY_NUMBER = re.compile(rf"/dev/(char|block)/{_DECIMAL}:{_DECIMAL}")
_MAJOR = re.compile(_DECIMAL)
_KINDS = {"char": CHAR, "block": BLOCK}
_WORDS = {CHAR: "char", BLOCK: "block"}


@dataclass(frozen=True)
class NodeFacts:
    """What systemd's reading of DeviceAllow= depends on.

    `numbers` holds the device nodes below /dev that the caller looked up, by the path's text, links
    followed. A path that is not in it counts as absent. See paths_to_look_up().
    """

    systemd: int
    majors: Majors = field(default_factory=Majors)
    numbers: Mapping[str, DeviceNumber] = field(default_factory=dict)

    def paths_of(self, number: DeviceNumber) -> list[str]:
        """Return the paths of the nodes with this number, the plainest first."""
        return sorted(
            (path for path, known in self.numbers.items() if known == number), key=lambda path: (len(path), path)
        )


def paths_to_look_up(entries: Iterable[DeviceAllow], systemd: int) -> frozenset[str]:
    """Return the paths whose numbers resolve() will want in NodeFacts."""
    paths = {entry.path for entry in entries if entry.path.startswith("/dev/")}
    return frozenset(path for path in paths if systemd < NUMBERS_FROM_TEXT or not _is_by_number(path))


def resolve(entry: DeviceAllow, facts: NodeFacts) -> frozenset[Rule]:
    """Return the rules that systemd writes for one entry; none for one that it cannot resolve.

    systemd reports no failure to the caller: it logs and goes on with the next entry.
    """
    if not entry.access:
        return frozenset()
    word, dash, group = entry.path.partition("-")
    if dash and word in _KINDS:
        kind = _KINDS[word]
        return frozenset(Rule(kind, major, None, entry.access) for major in _group_majors(kind, group, facts))
    number = _device_number(entry.path, facts)
    return frozenset() if number is None else frozenset((Rule(*number, entry.access),))


def standard_rules(policy: DevicePolicy, entries: Sequence[DeviceAllow]) -> frozenset[Rule]:
    """Return the rules that the policy adds by itself: none for strict, and none for auto without entries."""
    implied = policy is DevicePolicy.CLOSED or (policy is DevicePolicy.AUTO and bool(entries))
    return _STANDARD if implied else frozenset()


def declared_rules(policy: DevicePolicy, entries: Sequence[DeviceAllow], facts: NodeFacts) -> RuleSet:
    """Return what systemd will write next time. Policy auto without entries is no filter at all."""
    if policy is DevicePolicy.AUTO and not entries:
        return RuleSet(unrestricted=True)
    rules = set(standard_rules(policy, entries))
    for entry in entries:
        rules |= resolve(entry, facts)
    return _shared(frozenset(rules))


@functools.lru_cache(maxsize=256)
def _shared(rules: frozenset[Rule]) -> RuleSet:
    """Return one and the same set for equal rules: most units of a node have one of a few lists."""
    return RuleSet(rules)


def spell(rule: Rule, facts: NodeFacts) -> Optional[DeviceAllow]:
    """Return an entry that systemd resolves to exactly this rule, or None when there is none.

    No systemd has a spelling for `c *:77`.
    """
    if rule.major is None and rule.minor is not None:
        return None
    for path in _spellings(rule, facts):
        entry = DeviceAllow(path, rule.access)
        # One path with white space makes systemd refuse the whole call (dbus-cgroup.c).
        if not re.search(r"\s", path) and resolve(entry, facts) == {rule}:
            return entry
    return None


def merge(
    policy: DevicePolicy,
    current: Sequence[DeviceAllow],
    wanted: Iterable[Rule],
    facts: NodeFacts,
    *,
    disk: Optional[RuleSet],
) -> tuple[tuple[DeviceAllow, ...], tuple[Rule, ...]]:
    """Return the entries to send so that `wanted` is declared, and the wanted rules that cannot be.

    `policy` and `current` are what systemd has in memory. `disk` is what a reload would make of the
    unit's files, None where that is the same: one entry makes systemd write its whole list to disk.
    Rules that memory and disk cover need no entry. systemd replaces the access of an entry whose path
    it has already, so an entry carries the access of both. A unit without a filter gets nothing: one
    entry would create a filter.
    """
    memory = declared_rules(policy, current, facts)
    if memory.unrestricted:
        return (), ()
    send: dict[str, Access] = {}
    unspelt = []
    for rule in sorted(wanted, key=lambda rule: rule.sort_key):
        if memory.covers(rule) and (disk is None or disk.covers(rule)):
            continue
        entry = spell(rule, facts)
        if entry is None:
            unspelt.append(rule)
            continue
        known = [other.access for other in current if other.path == entry.path]
        for access in (entry.access, *known):
            send[entry.path] = send.get(entry.path, Access.NONE) | access
    entries = tuple(DeviceAllow(path, access) for path, access in send.items())
    sent = RuleSet(frozenset(rule for entry in entries for rule in resolve(entry, facts)))
    return entries, tuple(rule for rule in unspelt if not sent.covers(rule))


def _is_by_number(path: str) -> bool:
    return path.startswith(("/dev/char/", "/dev/block/"))


def _device_number(path: str, facts: NodeFacts) -> Optional[DeviceNumber]:
    # systemd validates /run/systemd/inaccessible/ as a path but applies only what is below /dev.
    if not path.startswith("/dev/"):
        return None
    if facts.systemd < NUMBERS_FROM_TEXT or not _is_by_number(path):
        return facts.numbers.get(path)
    match = _BY_NUMBER.fullmatch(path)
    if match is None:
        return None
    number = DeviceNumber(_KINDS[match[1]], int(match[2]), int(match[3]))
    return number if number.major <= MAX_MAJOR and number.minor <= MAX_MINOR else None


def _group_majors(kind: str, group: str, facts: NodeFacts) -> Iterable[Optional[int]]:
    if facts.systemd >= NUMBERS_FROM_TEXT:
        if group == "*":
            return (None,)
        if _MAJOR.fullmatch(group) and int(group) <= MAX_MAJOR:
            return (int(group),)
    return facts.majors.matching(kind, group)


def _spellings(rule: Rule, facts: NodeFacts) -> Iterable[str]:
    word = _WORDS[rule.kind]
    if rule.major is None:
        yield f"{word}-*"
    elif rule.minor is None:
        yield f"{word}-{rule.major}"
        for name in sorted(facts.majors.names(rule.kind, rule.major)):
            yield f"{word}-{name}"
    else:
        yield f"/dev/{word}/{rule.major}:{rule.minor}"
        yield from facts.paths_of(DeviceNumber(rule.kind, rule.major, rule.minor))
