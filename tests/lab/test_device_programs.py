"""The tests' assembler: what it makes is what real programs are, and what the kernel takes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.kernel import bpf
from gpuguard.model.accepted import accepted_code
from gpuguard.model.rule import Rule
from tests.lab import bpf as lab
from tests.lab.containers import Docker
from tests.lab.device_programs import runc, systemd
from tests.lab.node import Node
from tests.lab.random_programs import random_program, random_sums
from tests.model.shapes import SHAPES


@pytest.fixture
def docker_v2(node_v2: Node) -> Iterator[Docker]:
    """Return Docker in `node_v2`."""
    docker = Docker(node_v2)
    reason = docker.why_not()
    if reason is not None:
        pytest.skip(reason)
    yield docker
    docker.clear()


@pytest.fixture
def loading() -> None:
    """Skip where no program can be loaded."""
    reason = lab.why_not()
    if reason is not None:
        pytest.skip(reason)


def only_program(cgroup: Path) -> bytes:
    """Return the code of the one program that a cgroup has."""
    directory = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    try:
        (number,) = bpf.query(directory, effective=False)
        return bpf.program(number).code
    finally:
        os.close(directory)


def test_runc_s_shape(docker_v2: Docker) -> None:
    """A container's program is, byte for byte, what the assembler makes of its rules."""
    code = only_program(docker_v2.run("trainer").cgroup)
    assert runc(accepted_code(code)) == code


def test_systemd_s_shape(node_v2: Node) -> None:
    """A scope's program likewise: systemd puts the last entry first."""
    scope = node_v2.scope(device_allow=["char-* m", "block-240 rwm", "/dev/char/195:0 rw"])
    code = only_program(scope.cgroup)
    scope.stop()
    assert systemd(map(Rule.parse, ["c 195:0 rw", "b 240:* rwm", "c *:* m"])) == code


@pytest.mark.usefixtures("loading")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_verifier_takes_each_shape(shape: str) -> None:
    """Also without rules, and with forty; two hundred in the shape `varied` are more than the verifier follows."""
    choose = random.Random(3)  # noqa: S311  # a test's dice
    for count in (0, 1, 40):
        code = SHAPES[shape]([Rule.parse(f"c {195 + number}:{number} rw") for number in range(count)], choose)
        os.close(lab.load(code))


@pytest.mark.usefixtures("loading")
def test_the_verifier_takes_random_programs() -> None:
    """Each of them, so that none is left out of a comparison."""
    choose = random.Random(4)  # noqa: S311  # a test's dice
    for number in range(200):
        os.close(lab.load(random_program(choose, 30, plain=number % 2 == 0)))
        os.close(lab.load(random_sums(choose)))
