"""What a device program says when it is asked about some devices: for one that no list of rules describes."""

from __future__ import annotations

from collections.abc import Iterable

from gpuguard.errors import ProgramError
from gpuguard.model.device_program import Program
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet

_MASKS = tuple(Access(mask) for mask in range(int(Access.RWM), 0, -1))


def asked(program: Program, candidates: Iterable[Rule]) -> RuleSet:
    """Return what the program permits of the candidates' devices, whatever access the candidates themselves name.

    Raises ProgramError for a program that cannot be followed, and for a candidate that is more than one device:
    there is no asking about those.
    """
    permitted: set[Rule] = set()
    for kind, major, minor in sorted({_number(rule) for rule in candidates}):
        found: list[Access] = []
        for access in _MASKS:
            if any(not access & ~larger for larger in found):
                continue
            if permits(program, kind, major, minor, access):
                found.append(access)
        permitted.update(Rule(kind, major, minor, access) for access in found)
    return RuleSet(frozenset(permitted))


def _number(rule: Rule) -> tuple[str, int, int]:
    if rule.major is None or rule.minor is None:
        raise ProgramError(f"no list of rules says what it does, and it cannot be asked about all of {rule.device}")
    return rule.kind, rule.major, rule.minor
