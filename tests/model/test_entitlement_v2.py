"""Learning on cgroup v2, where programs tell what was given and nothing can be written back."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.model.device_filter import DeviceFilter
from gpuguard.model.entitlement import Entitlement, learn
from gpuguard.model.observation import Observation
from tests.model.looks import GROUP, entitlement, guarded, rules
from tests.model.programs import SLICE, look_at, runtime, systemd, unknown

GPU0, GPU1, TTY = "c 1:0 rw", "c 1:1 rw", "c 5:0 rwm"
STARTING = entitlement(GPU0, settled=False, quiet_since=99.0)


def learnt(known: Optional[Entitlement], seen: Observation, *, reloading: bool = False) -> Optional[Entitlement]:
    """Learn from one look, with a settle time of 2 s."""
    return learn(known, seen, guarded, settle=2.0, reloading=reloading, wall_clock=1_700_000_000.0)


@pytest.mark.invariant(1, 4)
@pytest.mark.parametrize("filters", [(), (systemd(GPU0, TTY, on=SLICE),)])
def test_nothing_is_learnt_before_the_scope_has_a_program(filters: tuple[DeviceFilter, ...]) -> None:
    """What a slice lets through was given to nobody: the runtime's own program is still to come."""
    assert learnt(None, look_at(*filters)) is None
    assert learnt(STARTING, look_at(*filters)) == STARTING


def test_what_all_programs_accept_is_learnt() -> None:
    """The GPU of the runtime's program, as far as the slice lets it through."""
    found = learnt(None, look_at(runtime(GPU0, GPU1, TTY), systemd(GPU0, TTY, on=SLICE)))
    assert found is not None
    assert found.rules == rules(GPU0)
    assert not found.settled


def test_what_the_runtime_gave_is_learnt_after_a_loss() -> None:
    """A container that a reload stripped before it was seen: the runtime's program still tells what it was given."""
    found = learnt(None, look_at(runtime(GPU0, TTY), systemd(TTY)))
    assert found is not None
    assert found.rules == rules(GPU0)


@pytest.mark.invariant(1)
def test_the_program_of_an_earlier_run_gives_nothing() -> None:
    """A service that runs again in the same control group still has what a hook attached for its last run."""
    again = replace(look_at(runtime(GPU0, TTY), systemd(TTY)), unit="trainer.service")
    assert learnt(None, again) is None


@pytest.mark.invariant(1)
@pytest.mark.parametrize(
    "filters",
    [
        (unknown(GPU0), systemd(TTY)),
        (runtime("a *:* rwm"), systemd(TTY)),
        (runtime(GPU0, on=SLICE), systemd(TTY)),
        (runtime(GPU0, on=f"{GROUP}/container"), systemd(TTY)),
    ],
)
def test_what_may_not_be_the_runtimes_gift_is_not_learnt(filters: tuple[DeviceFilter, ...]) -> None:
    """What may be anybody's, is no filter, is a slice's, or is within the container's reach gives nothing by itself."""
    assert learnt(None, look_at(*filters)) is None


def test_of_a_program_that_is_no_filter_what_is_in_force_is_learnt() -> None:
    """The runtime's program lets everything through, and systemd's the GPU that it was told of at the start."""
    found = learnt(None, look_at(runtime("a *:* rwm"), systemd(GPU0, TTY)))
    assert found is not None
    assert found.rules == rules(GPU0)


@pytest.mark.invariant(1)
def test_what_the_runtime_does_not_give_is_forgotten_while_it_starts() -> None:
    """Systemd's program came first and let a GPU through; the runtime's, which follows, does not."""
    both = entitlement(GPU0, GPU1, settled=False, quiet_since=90.0)
    found = learnt(both, look_at(systemd(GPU0, GPU1), runtime(GPU0)))
    assert found is not None
    assert found.rules == rules(GPU0)
    assert found.quiet_since == 100.0
    assert learnt(STARTING, look_at(systemd(GPU0), runtime(GPU1))) is None


def test_a_settled_one_keeps_what_the_runtime_takes_away() -> None:
    """Afterwards a program that denies is a loss, and blocked."""
    known = entitlement(GPU0)
    assert learnt(known, look_at(runtime(TTY))) == known


class TestLossWhileStarting:
    """A reload strips a container before it has settled: only a declaration gives back, and that wants it settled."""

    SEEN = look_at(runtime(GPU0, TTY), systemd(TTY), at=102.0)

    def test_does_not_keep_it_from_settling(self) -> None:
        """What the runtime's program accepts is not the runtime's to have changed."""
        found = learnt(STARTING, self.SEEN)
        assert found is not None
        assert (found.settled, found.rules) == (True, rules(GPU0))

    def test_is_no_reason_to_settle_sooner(self) -> None:
        """The quiet time is waited for, and the end of the reload."""
        assert learnt(entitlement(GPU0, settled=False, quiet_since=101.0), self.SEEN) is not None
        assert learnt(STARTING, self.SEEN, reloading=True) == STARTING
