"""The prober reports what the kernel answers, and never more than that."""

from __future__ import annotations

import errno
import time

import pytest

from tests.lab.devices import GPU0, GPU1, PLAIN, Device
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.prober import Answer, Prober

NULL = PLAIN[0]
NO_SUCH_MISC = Device("/dev/none", 10, 254)  # an unknown minor of the misc major: its open gives ENODEV
ALLOWED = ["/dev/null rw", "/dev/char/195:0 rw", "/dev/char/10:254 rw"]


@pytest.mark.parametrize(
    ("number", "allowed", "denied", "text"),
    [
        (0, True, False, "opened"),
        (errno.ENXIO, True, False, "ENXIO"),
        (errno.EPERM, False, True, "EPERM"),
        (errno.EACCES, False, False, "EACCES"),
    ],
)
def test_meaning_of_each_answer(number: int, allowed: bool, denied: bool, text: str) -> None:
    """Success and ENXIO mean allowed, EPERM means denied, and any other errno means neither."""
    answer = Answer(number)
    assert (answer.allowed, answer.denied, str(answer)) == (allowed, denied, text)


@pytest.mark.parametrize(
    ("device", "answer"), [(NULL, "opened"), (GPU0, "ENXIO"), (GPU1, "EPERM"), (NO_SUCH_MISC, "ENODEV")]
)
def test_open_tells_the_kernels_answer(node_v1: Node, prober: Prober, device: Device, answer: str) -> None:
    """An open from inside a restricted scope gives what a process of that scope would get."""
    scope = node_v1.scope(device_allow=ALLOWED)
    assert str(prober.open(scope.cgroup, device)) == answer
    scope.stop()


def test_open_leaves_the_group_as_it_was(node_v1: Node, prober: Prober) -> None:
    """The prober's process is gone from the group after the answer, and made no node in the scope's own /dev."""
    scope = node_v1.scope(device_allow=ALLOWED)
    prober.open(scope.cgroup, GPU0)
    assert (scope.cgroup / "cgroup.procs").read_text().split() == [str(scope.pid)]
    scope.stop()


def test_open_in_a_group_that_is_gone_is_an_error(node_v1: Node, prober: Prober) -> None:
    """Where the group has vanished there is no answer but an error that names it."""
    scope = node_v1.scope()
    scope.stop()
    with pytest.raises(LabError, match=scope.name):
        prober.open(scope.cgroup, GPU0)
    with pytest.raises(LabError, match=scope.name):
        prober.loop(scope.cgroup, GPU0)


def test_loop_sees_no_gap_where_there_is_none(node_v1: Node, prober: Prober) -> None:
    """A loop on an allowed device counts its opens and reports no failure and no gap."""
    scope = node_v1.scope(device_allow=ALLOWED)
    with prober.loop(scope.cgroup, GPU0) as loop:
        time.sleep(0.2)
        report = loop.stop()
    assert report.opens > 100
    assert (report.denied, report.gaps, report.odd) == (0, (), {})
    scope.stop()


def test_loop_measures_a_gap(node_v1: Node, prober: Prober) -> None:
    """A loop reports one gap from a denial to the next allowance, as long as the denial lasted, on this clock."""
    scope = node_v1.scope(device_allow=ALLOWED)
    with prober.loop(scope.cgroup, GPU0) as loop:
        time.sleep(1.5)  # each time longer than it is ever kept from its processor
        before = time.monotonic_ns()
        (scope.cgroup / "devices.deny").write_text("c 195:0 rw")
        denied = time.monotonic_ns()
        time.sleep(1.5)
        allowing = time.monotonic_ns()
        (scope.cgroup / "devices.allow").write_text("c 195:0 rw")
        time.sleep(1.5)
        report = loop.stop()
    (gap,) = report.gaps
    assert gap.ended
    assert gap.start_ns >= before
    assert gap.start_ns + gap.length_us * 1000 >= allowing
    assert gap.start_ns < allowing
    assert report.opens > report.denied > 0
    assert denied > before
    scope.stop()


def test_loop_reports_a_gap_that_has_not_ended(node_v1: Node, prober: Prober) -> None:
    """A device that is still denied when the loop stops gives a gap that is marked as not ended."""
    scope = node_v1.scope(device_allow=ALLOWED)
    with prober.loop(scope.cgroup, GPU1) as loop:
        time.sleep(0.1)
        report = loop.stop()
    assert [gap.ended for gap in report.gaps] == [False]
    assert report.denied == report.opens
    scope.stop()


def test_loop_reports_other_failures_by_name(node_v1: Node, prober: Prober) -> None:
    """Failures that are neither yes nor no are counted under their names and make no gap."""
    scope = node_v1.scope(device_allow=ALLOWED)
    with prober.loop(scope.cgroup, NO_SUCH_MISC) as loop:
        time.sleep(0.1)
        report = loop.stop()
    assert report.odd == {"ENODEV": report.opens}
    assert (report.denied, report.gaps) == (0, ())
    scope.stop()
