"""Rules, programs and questions of chance about devices that are harmless to open."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import BLOCK, CHAR, MAX_MINOR, Access, Rule
from tests.kernel.asker import Question
from tests.lab import device_programs
from tests.lab.random_programs import random_program, random_sums
from tests.model.shapes import SHAPES

# Of the memory driver: null, zero, full, random, urandom.
_MEMORY = [DeviceNumber(CHAR, 1, minor) for minor in (3, 5, 7, 8, 9)]
MEMORY_SHARE = 0.2
# For local use or for drivers that take any number; only those are used that no driver has.
_CANDIDATES = (*range(240, 255), 60, 61, 62, 63, *range(120, 128), 500, 511, 4095)
_MINORS = (0, 1, 2, 3, 255, 256, MAX_MINOR)
_ASKED = (Access.MKNOD, Access.READ, Access.WRITE, Access.RW)


@dataclass(frozen=True)
class Devices:
    """Device numbers that tests may ask for."""

    majors: dict[str, tuple[int, ...]]
    """Without a driver, by type."""
    open_free: bool
    """Whether to open those, too. Where the kernel can load modules it starts modprobe each time."""

    @classmethod
    def here(cls, count: int = 4) -> Devices:
        """Return numbers for which this machine has no driver."""
        taken = Majors.parse(Path("/proc/devices").read_text(encoding="ascii"))
        found = {}
        for kind in (BLOCK, CHAR):
            used = {major for of, major, _ in taken.drivers if of == kind}
            found[kind] = tuple(major for major in _CANDIDATES if major not in used)[:count]
        return cls(found, open_free=not Path("/proc/sys/kernel/modprobe").exists())

    def nodes(self) -> list[DeviceNumber]:
        """Return all of them."""
        free = [(kind, major, minor) for kind, majors in self.majors.items() for major in majors for minor in _MINORS]
        return [DeviceNumber(*node) for node in free] + _MEMORY

    def questions(self, choose: random.Random, count: int) -> list[Question]:
        """Return some of them with some access each."""
        return [self._question(choose) for _ in range(count)]

    def _question(self, choose: random.Random) -> Question:
        access = choose.choice(_ASKED)
        memory = access != Access.MKNOD and not self.open_free
        return (*self._node(choose, 1 if memory else MEMORY_SHARE), int(access))

    def _node(self, choose: random.Random, memory: float) -> DeviceNumber:
        return choose.choice(_MEMORY if choose.random() < memory else self.nodes())

    def rules(self, choose: random.Random, most: int = 24) -> list[Rule]:
        """Return rules about them, some with wildcards."""
        return [self._rule(choose) for _ in range(choose.randint(0, most))]

    def _rule(self, choose: random.Random) -> Rule:
        kind, major, minor = self._node(choose, MEMORY_SHARE)
        access = Access(choose.choice((1, 2, 3, 4, 5, 6, 6, 7, 7, 7)))
        wild_major, wild_minor = choose.random() < 0.2, choose.random() < 0.4
        return Rule(kind, None if wild_major else major, None if wild_minor else minor, access)

    def program(self, choose: random.Random, rules: Sequence[Rule]) -> bytes:
        """Return a program: of these rules, in some shape, or of chance alone."""
        kind = choose.choice([*SHAPES, "rc93", "denying", "all but", "random", "plain", "sums", "sums"])
        if kind == "denying":
            return device_programs.crun([(rule, choose.random() < 0.8) for rule in rules])
        if kind == "rc93":
            return device_programs.runc_rc93(rules)
        if kind == "all but":
            return device_programs.runc(rules, allow=False)
        if kind == "sums":
            return random_sums(choose)
        if kind in {"random", "plain"}:
            numbers = [number for _, *both in self.nodes() for number in both]
            return random_program(choose, 30, plain=kind == "plain", numbers=numbers)
        return SHAPES[kind](rules, choose)
