"""gpuguard's reading of device programs against the kernel's; skipped where there is no root or no node.

A longer run: python -m tests.kernel.differential --comparisons 1000000 --seed 7
"""

from __future__ import annotations

import os

import pytest

from gpuguard.errors import ProgramError
from gpuguard.model.device_program import decode
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access
from tests.kernel import differential as module
from tests.kernel.asker import Question
from tests.kernel.differential import A_ROUND, Differential, Kernel, reason_not, run
from tests.kernel.questions import Devices
from tests.lab import bpf as lab
from tests.lab.device_programs import answer, instruction
from tests.lab.errors import LabError

ROUNDS, SCOPES = 220, 40
SEED = 20


@pytest.fixture(scope="module", autouse=True)
def _able() -> None:
    reason = reason_not()
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.node
@pytest.mark.invariant(3)
def test_gpuguard_and_the_kernel_agree() -> None:
    """On every question to programs of the tests' own and of systemd's, on several levels."""
    tally = run(SEED, ROUNDS, SCOPES)
    assert not tally.disagreements, "\n".join(tally.disagreements[:3])
    assert tally.comparisons == (ROUNDS + SCOPES) * A_ROUND == 26_000
    assert 0.2 < tally.allowed / tally.comparisons < 0.8
    assert tally.as_rules > 0.4 * tally.comparisons


def test_every_operation_is_the_kernel_s() -> None:
    """Arithmetic and comparisons, 64 and 32 bits wide, at the edges of the numbers."""
    devices = Devices.here(count=1)
    with lab.scratch() as cgroup, Kernel(devices) as kernel:
        differential = Differential(kernel, devices, SEED)
        differential.operations(cgroup)
    assert not differential.tally.disagreements, "\n".join(differential.tally.disagreements[:3])
    operations, comparisons, values, bits = 13, 11, 19, 10
    assert differential.tally.comparisons == 2 * values**2 * (operations * bits + comparisons)


def test_a_wrong_reading_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disagreement is told with the seed, the question, both answers and the programs."""
    monkeypatch.setattr(module, "permits", lambda *_: False)
    tally = run(SEED, 5, 0)
    assert len(tally.disagreements) == tally.allowed > 0
    assert f"seed {SEED}, programs " in tally.disagreements[0]
    assert "the kernel says True, permits False" in tally.disagreements[0]
    assert "Instruction(opcode=" in "".join(tally.disagreements)


@pytest.mark.parametrize(
    "code",
    [
        instruction(0xB7, 0, immediate=2) + instruction(0x95),
        instruction(0x95),
        instruction(0x61, 0, 1, 0) + instruction(0x95),
        instruction(0x79, 2, 1, 0) + answer(allow=True),
        instruction(0x69, 2, 1, 4) + answer(allow=True),
        instruction(0x61, 2, 1, 12) + answer(allow=True),
        instruction(0x07, 1, immediate=4) + instruction(0x61, 2, 1, 0) + answer(allow=True),
        instruction(0xBF, 2, 3) + answer(allow=True),
    ],
    ids=lambda code: code.hex(),
)
def test_what_gpuguard_refuses_the_verifier_refuses(code: bytes) -> None:
    """Answers other than 0 and 1, unset registers, and loads that the context does not have."""
    with pytest.raises(LabError):
        os.close(lab.load(code))
    with pytest.raises(ProgramError):
        permits(decode(code), "c", 1, 3, Access.READ)


def test_nobody_is_asked_about_the_device_0_0() -> None:
    """The kernel lets mknod of `c 0:0` through, an overlay's whiteout; of `b 0:0` not (linux/device_cgroup.h)."""
    questions: list[Question] = [("c", 0, 0, 1), ("b", 0, 0, 1), ("c", 1, 3, 1)]
    with lab.scratch() as cgroup, lab.program(lab.DENY_ALL) as loaded, Kernel(Devices.here(count=1)) as kernel:
        lab.attach(cgroup, loaded.fd)
        home = cgroup / "home"
        home.mkdir()
        kernel.enter(home)
        assert kernel.ask(questions) == [True, False, False]
