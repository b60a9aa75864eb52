"""The programs of a cgroup v2: whose they are, what they let through together, and which of them denies."""

from __future__ import annotations

import pytest

from gpuguard.model.device_filter import Owner, accepted_by_all, denying, given, own, without_groups_below
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.model.looks import GROUP
from tests.model.programs import SLICE, runtime, systemd, unknown

NULL, GPU0, GPU1, USB = "c 1:3 rwm", "c 195:0 rw", "c 195:1 rw", "c 189:* rwm"


@pytest.mark.parametrize(
    ("name", "gpl_compatible", "owner"),
    [
        ("sd_devices", True, Owner.SYSTEMD),
        ("", False, Owner.RUNTIME),
        ("", True, Owner.UNKNOWN),
        ("other", True, Owner.UNKNOWN),
        ("other", False, Owner.UNKNOWN),
    ],
)
def test_the_owner_is_told_by_name_and_licence(name: str, *, gpl_compatible: bool, owner: Owner) -> None:
    """Since v251 systemd names its programs; runc and NVIDIA's hook have another licence than all others."""
    assert Owner.of(name, gpl_compatible=gpl_compatible) is owner


def test_all_must_accept() -> None:
    """Two programs let through what both accept; none at all lets everything through."""
    assert accepted_by_all([runtime(NULL, GPU0), systemd(NULL, GPU1)]) == RuleSet.of(NULL)
    assert accepted_by_all([]) == RuleSet(unrestricted=True)


def test_own_are_those_of_the_container() -> None:
    """A program of a slice above is not the container's own, one of a group below the scope is."""
    below, scope, above = runtime(GPU0, on=f"{GROUP}/container"), systemd(GPU0), systemd(GPU0, on=SLICE)
    namesake = runtime(GPU0, on=f"{GROUP}x")
    assert own((below, scope, above, namesake), GROUP) == (below, scope)


def test_those_of_the_groups_below_can_be_left_out() -> None:
    """What a group below denies is in force on the scope all the same."""
    below, scope, above = runtime(GPU0, on=f"{GROUP}/container"), systemd(GPU0), systemd(GPU0, on=SLICE)
    assert without_groups_below((below, scope, above), GROUP) == (scope, above)


class TestGiven:
    """What the runtime gave."""

    @pytest.mark.parametrize("other", [systemd(NULL), unknown(NULL)])
    def test_is_told_by_the_programs_that_are_not_systemds(self, other: object) -> None:
        """Without systemd's program, or the one that may be it, the container would have this."""
        assert given((runtime(NULL, GPU0, USB), other), GROUP) == RuleSet.of(NULL, GPU0, USB)  # type: ignore[arg-type]

    def test_is_no_more_than_the_slices_let_through(self) -> None:
        """What a slice denies was never the runtime's to give."""
        assert given((runtime(NULL, GPU0), systemd(NULL, on=SLICE)), GROUP) == RuleSet.of(NULL)

    def test_is_no_more_than_a_group_below_lets_through(self) -> None:
        """A program below the runtime's can take away."""
        assert given((runtime(NULL, on=f"{GROUP}/container"), runtime(NULL, GPU0)), GROUP) == RuleSet.of(NULL)

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "filters",
        [
            (),
            (systemd(NULL),),
            (unknown(GPU0),),
            (runtime(GPU0, on=SLICE),),
            (runtime(GPU0, on=f"{GROUP}/container"), systemd(NULL)),  # may be the container's own work
        ],
    )
    def test_is_unknown_without_a_program_of_the_runtime(self, filters: tuple[object, ...]) -> None:
        """A program that may be systemd's tells nothing of what the runtime gave."""
        assert given(filters, GROUP) is None  # type: ignore[arg-type]


def test_who_denies_is_named() -> None:
    """Each program that does not accept all that is asked for denies it."""
    first, second = runtime(NULL, "c 195:0 r"), systemd(NULL, GPU0)
    assert denying((first, second), Rule.parse(GPU0)) == (first,)
    assert denying((first, second), Rule.parse(NULL)) == ()
    assert str(first) == f"the runtime's program 11 on {GROUP}"
    assert str(unknown()) == f"program 13 on {GROUP}"
