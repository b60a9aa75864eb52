"""A set of device rules, matched as the kernel's v1 device controller matches them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Optional

from gpuguard.errors import RuleError
from gpuguard.model.rule import Access, Rule

# security/device_cgroup.c prints this line for a group whose default is "allow".
ALLOW_ALL = "a *:* rwm"


@dataclass(frozen=True)
class RuleSet:
    """Rules of one device cgroup; `unrestricted` is a group without any filter.

    One entry must hold all bits that are asked for: `c 195:* m` and `c 195:0 r` do not add up
    to rm (security/device_cgroup.c, match_exception).
    """

    rules: frozenset[Rule] = frozenset()
    unrestricted: bool = False

    @classmethod
    def of(cls, *lines: str) -> RuleSet:
        """Build a set from lines, for people and tests."""
        return cls.parse("\n".join(lines))

    @classmethod
    def parse(cls, text: str) -> RuleSet:
        """Read the whole text of a devices.list. Raises RuleError on a line that is not a rule."""
        rules = set()
        for line in text.splitlines():
            if line == ALLOW_ALL:
                return cls(unrestricted=True)
            if line:
                rules.add(Rule.parse(line))
        return cls(frozenset(rules))

    def covers(self, rule: Rule) -> bool:
        """Whether the kernel would permit all that `rule` asks for."""
        return self.unrestricted or rule in self.rules or any(entry.covers(rule) for entry in self.rules)

    def missing(self, wanted: Iterable[Rule]) -> frozenset[Rule]:
        """Return those of `wanted` that this set does not cover."""
        return frozenset(rule for rule in wanted if not self.covers(rule))

    def intersection(self, other: RuleSet) -> RuleSet:
        """Return the set that permits what both permit, without rules that another of it covers."""
        if self.unrestricted or other.unrestricted:
            both = self if other.unrestricted else other
            return both if both.unrestricted else RuleSet(largest_rules(both.rules))
        if self.rules == other.rules:
            return RuleSet(largest_rules(self.rules))
        theirs = largest_rules(other.rules)
        meets = (mine.meet(rule) for mine in largest_rules(self.rules) for rule in theirs)
        return RuleSet(largest_rules(rule for rule in meets if rule is not None))

    def text(self) -> str:
        """Return the set in the form of devices.list, sorted, one line each."""
        if self.unrestricted:
            return ALLOW_ALL + "\n"
        return "".join(f"{rule}\n" for rule in self)

    def __iter__(self) -> Iterator[Rule]:
        """Go through the rules in people's order."""
        return iter(sorted(self.rules, key=lambda rule: rule.sort_key))

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self.rules)


def largest_rules(rules: Iterable[Rule]) -> frozenset[Rule]:
    """Return the rules without those that another one covers."""
    entries: defaultdict[tuple[str, Optional[int], Optional[int]], set[Access]] = defaultdict(set)
    for rule in rules:
        entries[rule.kind, rule.major, rule.minor].add(rule.access)
    return frozenset(
        Rule(kind, major, minor, access)
        for (kind, major, minor), accesses in entries.items()
        for access in accesses
        if not any(
            not access & ~other and (access != other or place != (major, minor))
            for place in product({major, None}, {minor, None})
            for other in entries.get((kind, *place), ())
        )
    )


def parse_rules(lines: Iterable[str]) -> frozenset[Rule]:
    """Read rules that must all be rules: no allow-all. Raises RuleError."""
    rules = frozenset(Rule.parse(line) for line in lines)
    if not rules:
        raise RuleError("no rule at all")
    return rules
