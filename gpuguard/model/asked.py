"""What a device program says when it is asked about some devices: for one that no list of rules describes."""

from __future__ import annotations

from collections.abc import Iterable

from gpuguard.errors import ProgramError
from gpuguard.model.device_program import Program
from gpuguard.model.evaluate import answer
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet, largest_rules
from gpuguard.model.steps import steps

# For all questions together: about a second. 60 rules and 1,500 candidates take 1.6 million.
MAX_STEPS = 1 << 21

_MASKS = tuple(Access(mask) for mask in range(1, int(Access.RWM) + 1))


def asked(program: Program, candidates: Iterable[Rule]) -> RuleSet:
    """Return what the program permits of the candidates' devices, whatever access the candidates themselves name.

    A rule stands for each part of its access, too. A program may deny a part of what it permits (crun's does, for an
    OCI spec that denies `w` after allowing `rwm`: O_RDWR passes and O_WRONLY does not); such an access is left out.
    Raises ProgramError for a program that cannot be followed or takes too long, and for a candidate that is more than
    one device: there is no asking about those.
    """
    permitted: set[Rule] = set()
    code, left = steps(program), MAX_STEPS
    for kind, major, minor in {_number(rule) for rule in candidates}:
        denied = []
        for access in _MASKS:
            permits, taken = answer(code, kind, major, minor, access)
            left -= taken
            if not permits:
                denied.append(access)
        if left < 0:
            raise ProgramError(f"takes more than {MAX_STEPS} steps to be asked about all")
        whole = (access for access in _MASKS if all(part & ~access for part in denied))
        permitted.update(Rule(kind, major, minor, access) for access in whole)
    return RuleSet(largest_rules(permitted))


def _number(rule: Rule) -> tuple[str, int, int]:
    if rule.major is None or rule.minor is None:
        raise ProgramError(f"no list of rules says what it does, and it cannot be asked about all of {rule.device}")
    return rule.kind, rule.major, rule.minor
