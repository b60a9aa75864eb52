"""The device rules that a cgroup device program comes down to."""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Optional

from gpuguard.errors import ProgramError
from gpuguard.model.device_program import Program, decode
from gpuguard.model.lanes import ASKED, completed, lanes_of, largest
from gpuguard.model.paths import Among, Region, follow
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet, largest_rules

# Rules and regions to compare: seconds. 300 rules with as many different majors make 180,000.
MAX_PAIRS = 1 << 24

# Lists are compared with one another, rule by rule.
MAX_RULES = 1024


def accepted_code(code: bytes) -> RuleSet:
    """Return what a program accepts, from its instructions as the kernel hands them out. Raises ProgramError."""
    return accepted(decode(code))


def accepted(program: Program) -> RuleSet:
    """Return the rules that permit exactly what the program allows, as few as there can be.

    Where none do, those that permit exactly what it allows of all that the kernel asks: runc 1.0.0-rc93 lets an access
    pass when any part of it is given. Raises ProgramError when gpuguard cannot follow the program, and when no list of
    rules says what it does, for example because it denies one device after allowing all of its major.
    """
    answers = follow(program)
    try:
        return _list(answers.allowed, answers.denied)
    except ProgramError:
        allowed = [region._replace(lanes=region.lanes & ASKED) for region in answers.allowed]
        denied = [region._replace(lanes=region.lanes & ASKED) for region in answers.denied]
        return _list(allowed, [region for region in denied if region.lanes], completed)


def _list(allowed: Sequence[Region], denied: Sequence[Region], complete: Callable[[int], int] = int) -> RuleSet:
    if not denied:
        return RuleSet(unrestricted=True)
    rules = largest_rules(_rules(allowed, complete))
    if len(rules) > MAX_RULES or len(rules) * len(denied) > MAX_PAIRS:
        raise ProgramError(f"comes down to too many rules: {len(rules)}")
    _refuse_contradiction(rules, denied)
    return RuleSet(rules)


def _rules(regions: Iterable[Region], complete: Callable[[int], int]) -> Iterator[Rule]:
    """Go through rules that cover the regions; a number that is only known not to be some becomes the wildcard.

    What is allowed of a whole major is allowed of each of its devices: `c *:* m` is a part of `c 195:0 rwm`.
    """
    lanes: defaultdict[tuple[Optional[int], Optional[int]], int] = defaultdict(int)
    for region in regions:
        lanes[_exactly(region.major), _exactly(region.minor)] |= region.lanes
    for major, minor in list(lanes):
        wider = {(major, minor), (major, None), (None, minor), (None, None)}
        asked = functools.reduce(operator.or_, (lanes.get(place, 0) for place in wider))
        for kind, access in largest(complete(asked)):
            yield Rule(kind, major, minor, access)


def _refuse_contradiction(rules: Iterable[Rule], denied: Iterable[Region]) -> None:
    """Raise ProgramError if a rule would permit what the program denies."""
    by_major: defaultdict[Optional[int], list[Region]] = defaultdict(list)
    for region in denied:
        by_major[_exactly(region.major)].append(region)
    every = [region for regions in by_major.values() for region in regions]
    for rule in rules:
        lanes = lanes_of(rule.kind, rule.access)
        for region in every if rule.major is None else by_major[None] + by_major[rule.major]:
            if region.lanes & lanes and _meet(rule.major, region.major) and _meet(rule.minor, region.minor):
                raise ProgramError(f"no list of rules says what it does: it denies some of {rule}, and allows the rest")


def _exactly(among: Among) -> Optional[int]:
    return among if isinstance(among, int) else None


def _meet(number: Optional[int], among: Among) -> bool:
    """Whether a rule's number, None for the wildcard, can be one of these."""
    if number is None:
        return True
    return among == number if isinstance(among, int) else number not in among
