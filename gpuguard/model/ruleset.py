"""A set of device rules, matched as the kernel's v1 device controller matches them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpuguard.errors import RuleError
from gpuguard.model.rule import Rule

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
        return self.unrestricted or any(entry.covers(rule) for entry in self.rules)

    def missing(self, wanted: Iterable[Rule]) -> frozenset[Rule]:
        """Return those of `wanted` that this set does not cover."""
        return frozenset(rule for rule in wanted if not self.covers(rule))

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


def parse_rules(lines: Iterable[str]) -> frozenset[Rule]:
    """Read rules that must all be rules: no allow-all. Raises RuleError."""
    rules = frozenset(Rule.parse(line) for line in lines)
    if not rules:
        raise RuleError("no rule at all")
    return rules
