"""All shapes of device programs, for tests that hold in each."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Callable

from gpuguard.model.rule import Rule
from tests.lab import device_programs
from tests.lab.blinding import blinded
from tests.lab.device_programs import OLD_HEADER, runc

Shape = Callable[[Sequence[Rule], random.Random], bytes]


def _hook(rules: Sequence[Rule], choose: random.Random) -> bytes:
    given = choose.randint(0, len(rules))
    return device_programs.hook(runc(rules[:given]), rules[given:])


def _hook_on_systemd(rules: Sequence[Rule], choose: random.Random) -> bytes:
    given = choose.randint(0, len(rules))
    return device_programs.hook(device_programs.systemd(rules[:given]), rules[given:])


# Each takes rules, all of which are granted, and a source of chance.
SHAPES: dict[str, Shape] = {
    "runc": lambda rules, _: runc(rules),
    "old runc": lambda rules, _: runc(rules, OLD_HEADER),
    "crun": lambda rules, _: device_programs.crun([(rule, True) for rule in rules]),
    "hook": _hook,
    "hook on systemd": _hook_on_systemd,
    "systemd": lambda rules, _: device_programs.systemd(rules),
    "old systemd": lambda rules, _: device_programs.systemd(rules, OLD_HEADER),
    "varied": device_programs.varied,
}

# As they are read back, where that is not as they were loaded.
READ_BACK: dict[str, Shape] = {
    **SHAPES,
    "blinded runc": lambda rules, choose: blinded(runc(rules), choose),
    "blinded hook": lambda rules, choose: blinded(_hook(rules, choose), choose),
    "blinded systemd": lambda rules, choose: blinded(device_programs.systemd(rules), choose),
    "blinded varied": lambda rules, choose: blinded(device_programs.varied(rules, choose), choose),
}
