"""What is taken or given on purpose, and what is a loss."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.model.entitlement import Entitlement
from gpuguard.model.process import Process
from gpuguard.model.revocation import granted, revoked, self_given
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Write
from tests.model.looks import GROUP, SCOPE, guarded, rules

SYSTEMD = Process(1, "systemd", "/usr/lib/systemd/systemd", native=True)
RUNC = Process(40, "runc", "/usr/bin/runc", control_group="/system.slice/docker.service", native=True)
ADMIN = Process(41, "bash", "/usr/bin/bash", control_group="/user.slice/session-3.scope", native=True)
INSIDE = Process(42, "sh", "/bin/busybox", control_group=f"/system.slice/docker-{'ab' * 32}.scope")
NEIGHBOUR = Process(44, "sh", "/bin/busybox", control_group=f"/system.slice/docker-{'ac' * 32}.scope")
GONE = Process(43, "sh")
BASICS = ("c 5:0 rwm", "c 9:3 rwm")
GPUS = ("c 1:0 rw", "c 1:7 rw")


def entitled(*lines: str) -> Entitlement:
    """Return an entitlement."""
    return Entitlement(SCOPE, GROUP, 7, "", rules(*lines), frozenset(), True, False, 1.0, 1.0)  # noqa: FBT003


def write(writer: Optional[Process], before: tuple[str, ...], after: tuple[str, ...], *, denied: bool = True) -> Write:
    """Return a write that left one list in the place of another."""
    return Write(GROUP, 7, 5.0, denied, writer, before=RuleSet.of(*before), after=RuleSet.of(*after))


class TestTaken:
    """Rules that vanish."""

    @pytest.mark.parametrize("writer", [ADMIN, INSIDE])
    def test_a_single_rule_by_somebody_identified(self, writer: Process) -> None:
        """It is meant, and the device is revoked."""
        taken = write(writer, (*BASICS, *GPUS), (*BASICS, GPUS[1]))
        assert revoked(taken, entitled(*GPUS)) == {"c 1:0"}

    @pytest.mark.parametrize("writer", [SYSTEMD, RUNC, GONE, None])
    def test_by_anybody_else_is_a_loss(self, writer: Optional[Process]) -> None:
        """Runtimes and systemd rewrite what they do not know; of who is unknown nothing is known."""
        assert revoked(write(writer, (*BASICS, *GPUS), (*BASICS, GPUS[1])), entitled(*GPUS)) == frozenset()

    def test_a_part_of_the_access(self) -> None:
        """What is left of the device's access is no reason to give the rest back."""
        taken = write(ADMIN, (*BASICS, "c 1:0 rwm"), (*BASICS, "c 1:0 m"))
        assert revoked(taken, entitled("c 1:0 rwm")) == {"c 1:0"}

    def test_everything(self) -> None:
        """An "a" takes all, of which nobody has thought singly."""
        assert revoked(write(ADMIN, (*BASICS, *GPUS), ()), entitled(*GPUS)) == frozenset()

    def test_everything_while_another_fills_the_list_again(self) -> None:
        """What is there now was not there before: the list was emptied, and systemd is about to write it."""
        assert revoked(write(ADMIN, GPUS, BASICS[:1]), entitled(*GPUS)) == frozenset()

    def test_more_than_the_devices(self) -> None:
        """Who takes other rules along rewrites a list."""
        assert revoked(write(ADMIN, (*BASICS, *GPUS), BASICS[:1]), entitled(*GPUS)) == frozenset()

    def test_what_was_given_back_already(self) -> None:
        """The sentinel has judged it a loss: there is nothing to respect."""
        taken = Write(GROUP, 7, 5.0, True, ADMIN, restored=rules(GPUS[0]), whole_at=5.1)  # noqa: FBT003
        assert revoked(taken, entitled(*GPUS)) == frozenset()


class TestGiven:
    """Rules that appear."""

    def test_by_a_program_of_the_host(self) -> None:
        """It is learnt, with its very access."""
        given_ = write(ADMIN, (*BASICS, GPUS[0]), (*BASICS, *GPUS), denied=False)
        assert granted(given_, entitled(GPUS[0]), guarded) == rules(GPUS[1])

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("writer", [SYSTEMD, RUNC, INSIDE, GONE, None])
    def test_by_nobody_else(self, writer: Optional[Process]) -> None:
        """A container that may write its own list gives itself nothing, nor does who cannot be identified."""
        given_ = write(writer, (*BASICS, GPUS[0]), (*BASICS, *GPUS), denied=False)
        assert granted(given_, entitled(GPUS[0]), guarded) == frozenset()

    @pytest.mark.invariant(1)
    def test_not_by_who_denies(self) -> None:
        """Who takes something away has not given what appears at the same moment: the container may have."""
        taken = write(ADMIN, (*BASICS, GPUS[0]), (BASICS[0], *GPUS))
        assert granted(taken, entitled(GPUS[0]), guarded) == frozenset()

    def test_of_no_guarded_class(self) -> None:
        """What gpuguard does not guard is nobody's business."""
        given_ = write(ADMIN, GPUS, (*GPUS, *BASICS), denied=False)
        assert granted(given_, entitled(*GPUS), guarded) == frozenset()

    def test_what_the_container_has(self) -> None:
        """Who gives back by hand what was lost gives nothing new."""
        given_ = write(ADMIN, BASICS, (*BASICS, *GPUS), denied=False)
        assert granted(given_, entitled(*GPUS), guarded) == frozenset()

    def test_everything(self) -> None:
        """A list that is opened altogether teaches nothing."""
        opened = Write(GROUP, 7, 5.0, False, ADMIN, before=RuleSet.of(*BASICS), after=RuleSet(unrestricted=True))  # noqa: FBT003
        assert granted(opened, entitled(*GPUS), guarded) == frozenset()


class TestSelfGiven:
    """Rules that a container adds to its own list."""

    @staticmethod
    def wrote(writer: Optional[Process], *, denied: bool = False) -> Write:
        """Return a write to the list of the container that INSIDE runs in."""
        given_ = write(writer, GPUS[:1], (*GPUS, *BASICS), denied=denied)
        return replace(given_, control_group=INSIDE.control_group)

    @pytest.mark.parametrize("denied", [False, True])
    @pytest.mark.parametrize("below", ["", "/child"])
    def test_what_is_new_and_guarded(self, below: str, denied: bool) -> None:
        """Whichever file it wrote, and from whichever of its own groups."""
        inside = replace(INSIDE, control_group=INSIDE.control_group + below)
        assert self_given(self.wrote(inside, denied=denied), guarded) == rules(GPUS[1])

    @pytest.mark.parametrize("writer", [SYSTEMD, RUNC, ADMIN, GONE, None, NEIGHBOUR])
    def test_by_anybody_else(self, writer: Optional[Process]) -> None:
        """A runtime's hook, whoever is unknown, and another container's process are others."""
        assert self_given(self.wrote(writer), guarded) == frozenset()

    def test_a_list_that_is_not_known(self) -> None:
        """Without the list before or after nothing can be told."""
        for before, after in ((None, RuleSet()), (RuleSet(), None), (RuleSet(), RuleSet(unrestricted=True))):
            assert self_given(replace(self.wrote(INSIDE), before=before, after=after), guarded) == frozenset()
