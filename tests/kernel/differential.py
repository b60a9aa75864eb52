"""gpuguard's reading of device programs against the kernel's: the same questions to both.

    python -m tests.kernel.differential --comparisons 1000000 --seed 7

A comparison is one device and one access. The kernel's answer is what a process inside the cgroup gets from open(2) or
mknod(2); gpuguard's is what `permits` says of all programs that are in effect there and, where they come down to rules,
what the intersection of `accepted` says. Needs root. Programs are of two kinds: of the tests' own making, attached to
three nested cgroups, and systemd's own, for scopes of a real node with DevicePolicy and DeviceAllow of chance.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from gpuguard.errors import ProgramError
from gpuguard.kernel import bpf
from gpuguard.model.accepted import accepted
from gpuguard.model.device_program import Program, decode
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from tests.kernel import asker, operations
from tests.kernel.asker import Question
from tests.kernel.questions import Devices
from tests.lab import bpf as lab
from tests.lab.errors import LabError
from tests.lab.machine import why_not
from tests.lab.node import Node

A_ROUND = 100  # questions to the same programs
LEVELS = 3
PROGRAMS = (0, 0, 1, 1, 2)  # on each level


@dataclass
class Tally:
    """What came of it."""

    comparisons: int = 0
    allowed: int = 0
    programs: int = 0
    as_rules: int = 0
    """Comparisons in which `accepted` had an answer."""
    disagreements: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return one line of numbers."""
        return (
            f"{self.comparisons} comparisons ({self.allowed} allowed) with {self.programs} programs, "
            f"{self.as_rules} of them with rules: {len(self.disagreements)} disagreements"
        )


class Kernel(AbstractContextManager["Kernel"]):
    """The process that asks. Raises LabError when it says something else than yes or no."""

    def __init__(self, devices: Devices) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="gpuguard-test-")
        self._process = subprocess.Popen(
            [sys.executable, "-I", asker.__file__, self._directory.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if self._say(devices.nodes()) != "ready":
            raise LabError("the asking process does not start")

    def enter(self, cgroup: Path) -> None:
        """Put the process into a cgroup."""
        if self._say(str(cgroup)) != "in":
            raise LabError(f"the asking process cannot enter {cgroup}")

    def ask(self, questions: Sequence[Question]) -> list[bool]:
        """Return which of the questions the kernel says yes to."""
        answers = json.loads(self._say(questions) or "[]")
        if len(answers) != len(questions) or not set(answers) <= {0, errno.ENXIO, errno.EPERM}:
            raise LabError(f"the kernel says neither yes nor no: {set(answers)}")
        return [answer != errno.EPERM for answer in answers]

    def _say(self, request: object) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return self._process.stdout.readline().strip()

    def __exit__(self, *_: object) -> None:
        """End the process, and with it its nodes."""
        self._process.communicate(timeout=30)
        self._directory.cleanup()


def in_effect(cgroup: Path) -> list[Program]:
    """Return the programs of a cgroup and of its ancestors, as gpuguard reads them."""
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return [decode(bpf.program(number).code) for number in bpf.query(directory, effective=True)]
    finally:
        os.close(directory)


def come_down_to(programs: Sequence[Program]) -> Optional[RuleSet]:
    """Return the rules that all programs together leave, None when they leave no such thing."""
    rules = RuleSet(unrestricted=True)
    try:
        for program in programs:
            rules = rules.intersection(accepted(program))
    except ProgramError:
        return None
    return rules


class Differential:
    """Rounds of comparisons; each round is made from the seed and its own number alone."""

    def __init__(self, kernel: Kernel, devices: Devices, seed: int) -> None:
        self.tally = Tally()
        self._kernel = kernel
        self._devices = devices
        self._seed = seed

    def dice(self, name: str) -> random.Random:
        """Return the source of chance of one round."""
        return random.Random(f"{self._seed} {name}")  # noqa: S311  # a test's dice

    def own_programs(self, top: Path, rounds: range) -> None:
        """Compare with programs of the tests' own making on `top` and on two levels below it."""
        levels = [top, top / "a", top / "a" / "b"]
        for level in levels[1:]:
            level.mkdir()
        self._kernel.enter(levels[-1])
        for number in rounds:
            choose = self.dice(f"programs {number}")
            with self._attached(choose, levels):
                self.compare(f"programs {number}", levels[-1], self._devices.questions(choose, A_ROUND))
        self._kernel.enter(top)

    @contextlib.contextmanager
    def _attached(self, choose: random.Random, levels: Sequence[Path]) -> Iterator[None]:
        rules = self._devices.rules(choose)
        with contextlib.ExitStack() as stack:
            for level in levels:
                for _ in range(choose.choice(PROGRAMS)):
                    granted = [rule for rule in rules if choose.random() < 0.9]
                    granted += self._devices.rules(choose, most=4)
                    code = self._devices.program(choose, granted)
                    loaded = stack.enter_context(lab.program(code))
                    lab.attach(level, loaded.fd)
                    stack.callback(lab.detach, level, loaded.fd)
            yield

    def operations(self, cgroup: Path) -> None:
        """Compare each of BPF's operations and comparisons."""
        self._kernel.enter(cgroup)
        for name, code, questions in operations.programs("c", self._devices.majors["c"][0]):
            with lab.program(code) as loaded:
                lab.attach(cgroup, loaded.fd)
                self.compare(name, cgroup, questions)
                lab.detach(cgroup, loaded.fd)

    def scopes(self, node: Node, home: Path, rounds: range) -> None:
        """Compare with the programs that systemd attaches to scopes of a node."""
        for number in rounds:
            choose = self.dice(f"scope {number}")
            policy = choose.choice(["strict", "strict", "closed", "auto"])
            scope = node.scope(device_allow=self._entries(choose), policy=policy)
            try:
                self._kernel.enter(scope.cgroup)
                self.compare(f"scope {number}", scope.cgroup, self._devices.questions(choose, A_ROUND))
            finally:
                self._kernel.enter(home)
                scope.stop()

    def _entries(self, choose: random.Random) -> list[str]:
        """Return DeviceAllow in all of its spellings."""
        words = {"b": "block", "c": "char"}
        groups = ["char-mem", "char-m[e]m", "char-*", "block-*", "char-pts", "/dev/null", "/dev/urandom", "/dev/gone"]
        found = [
            f"{choose.choice(groups)} {Access(choose.randint(1, 7)).letters()}" for _ in range(choose.randint(0, 2))
        ]
        for rule in self._devices.rules(choose):
            if rule.major is None:
                path = f"{words[rule.kind]}-*"
            elif rule.minor is None:
                path = f"{words[rule.kind]}-{rule.major}"
            else:
                path = f"/dev/{words[rule.kind]}/{rule.major}:{rule.minor}"
            found.append(f"{path} {rule.access.letters()}")
        choose.shuffle(found)
        return found

    def compare(self, name: str, cgroup: Path, questions: Sequence[Question]) -> None:
        """Ask both, and write down where they differ."""
        programs = in_effect(cgroup)
        rules = come_down_to(programs)
        self.tally.programs += len(programs)
        for question, kernel in zip(questions, self._kernel.ask(questions)):
            kind, major, minor, access = question
            ours = all(permits(program, kind, major, minor, Access(access)) for program in programs)
            covered = None if rules is None else rules.covers(Rule(kind, major, minor, Access(access)))
            self.tally.comparisons += 1
            self.tally.allowed += kernel
            self.tally.as_rules += rules is not None
            if ours != kernel or covered not in {None, kernel}:
                asked = Rule(kind, major, minor, Access(access))
                listing = "\n".join(f"    {instruction}" for program in programs for instruction in program)
                self.tally.disagreements.append(
                    f"seed {self._seed}, {name}: {asked}: the kernel says {kernel}, permits {ours}, "
                    f"accepted {covered} of\n{listing}\n    {rules}"
                )


def reason_not() -> Optional[str]:
    """Say why this machine cannot do it, or return None when it can: a machine with a filter of its own cannot."""
    reason = lab.why_not() or why_not("v2")
    if reason is not None:
        return reason
    devices = Devices.here(count=1)
    questions = [(*node, int(access)) for node in devices.nodes() for access in (Access.MKNOD, Access.RW)]
    with Kernel(devices) as kernel:
        return None if all(kernel.ask(questions)) else "this process may not make or open device nodes"


def run(seed: int, rounds: int, scopes: int, *, edges: bool = False) -> Tally:
    """Compare: so many rounds with own programs and so many with scopes of systemd; `edges`: and each operation.

    Raises LabError.
    """
    devices = Devices.here()
    with lab.scratch() as top, Kernel(devices) as kernel:
        differential = Differential(kernel, devices, seed)
        if edges:
            differential.operations(top)
        differential.own_programs(top, range(rounds))
        with Node.boot("v2") if scopes else contextlib.nullcontext() as node:
            if node is not None:
                differential.scopes(node, top, range(scopes))
        return differential.tally


def main() -> int:
    """Run from the command line; exit status 1 when there were disagreements."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.kernel.differential", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--comparisons", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    reason = reason_not()
    if reason is not None:
        print(f"skipped: {reason}")
        return 0
    every = max(1, -(-options.comparisons // A_ROUND))
    tally = run(options.seed, every - every // 20, every // 20, edges=True)
    for disagreement in tally.disagreements[:10]:
        print(disagreement)
    print(tally)
    return 1 if tally.disagreements else 0


if __name__ == "__main__":
    sys.exit(main())
