"""What a device list lacks, told without parsing a list that was seen before."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Optional

from gpuguard.errors import CgroupUnreadableError, RuleError
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import ALLOW_ALL, RuleSet


@dataclass(frozen=True)
class Missing:
    """What is missing: `at_once` is to be written back now, `later` may be about to be written by systemd."""

    at_once: frozenset[Rule] = frozenset()
    later: frozenset[Rule] = frozenset()
    lines: tuple[bytes, ...] = ()
    """What to write for `at_once`, one rule each."""
    every_line: tuple[bytes, ...] = ()
    """The same for both."""

    def __bool__(self) -> bool:
        """Whether anything is missing."""
        return bool(self.every_line)


# Bytes: some 250 rules, where a container has 20. Of longer lists few are kept: each may take half a megabyte, and who
# adds one rule after the other makes thousands of them.
_LONG = 4096
_KEPT = 4


def missing(text: bytes, undeclared: frozenset[Rule], declared: frozenset[Rule]) -> Missing:
    """Compare a list with what should be there. Raises CgroupUnreadableError.

    Quickest with the same sets each time: see same().
    """
    return (_missing if len(text) < _LONG else _missing_in_long)(text, undeclared, declared)


def _compared(text: bytes, undeclared: frozenset[Rule], declared: frozenset[Rule]) -> Missing:
    rules = parse(text)
    at_once, later = rules.missing(undeclared), rules.missing(declared)
    lines = _lines(at_once)
    return Missing(at_once, later, lines, lines + _lines(later))


# systemd writes some 13 rules one by one, for each kind of container on the node: that many lists are ever seen.
_missing = lru_cache(maxsize=1024)(_compared)
_missing_in_long = lru_cache(maxsize=_KEPT)(_compared)


@lru_cache(maxsize=256)
def same(rules: frozenset[Rule]) -> frozenset[Rule]:
    """Return one and the same object for equal sets."""
    return rules


def parse(text: bytes) -> RuleSet:
    """Read a devices.list. Raises CgroupUnreadableError."""
    return (_parse if len(text) < _LONG else _parse_long)(text)


def _parsed(text: bytes) -> RuleSet:
    try:
        return RuleSet.parse(text.decode("ascii"))
    except (RuleError, UnicodeDecodeError) as error:
        raise CgroupUnreadableError(f"devices.list makes no sense: {error}") from error


_parse = lru_cache(maxsize=256)(_parsed)
_parse_long = lru_cache(maxsize=_KEPT)(_parsed)


def known(text: Optional[bytes]) -> Optional[RuleSet]:
    """Read a list, None where it is not known or makes no sense."""
    if text is None:
        return None
    try:
        return parse(text)
    except CgroupUnreadableError:
        return None


def _lines(rules: Iterable[Rule]) -> tuple[bytes, ...]:
    return tuple(str(rule).encode("ascii") for rule in sorted(rules, key=lambda rule: rule.sort_key))


def unrestricted(text: Optional[bytes]) -> bool:
    """Whether a list is that of a group without a filter of its own."""
    return text is not None and text.rstrip() == ALLOW_ALL.encode()
