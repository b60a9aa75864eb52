"""What is told of what could not be done or read, and of faults of gpuguard's own."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from gpuguard.errors import GpuguardError
from gpuguard.guard import record_trouble
from gpuguard.guard.record_trouble import TroubleRecorder
from tests.guard.log import capturing_log


class Told:
    """Troubles, and what was told of them."""

    def __init__(self) -> None:
        log, self.log = capturing_log()
        self.troubles = TroubleRecorder(log)

    def kinds(self) -> list[str]:
        """Return the kinds of events, in order."""
        return [entry["kind"] for entry in self.log]


@pytest.fixture
def told() -> Told:
    """Return some of which nothing was told."""
    return Told()


def test_a_trouble_is_told_until_it_changes(told: Told) -> None:
    """The same trouble of a scope is told once, another one or another scope's is told too."""
    for group, text in (("/a", "x"), ("/a", "x"), ("/b", "x"), ("/a", "y")):
        told.troubles.met(group, GpuguardError(text))
    assert [(entry["scope"], entry["event"]) for entry in told.log] == [("a", "x"), ("b", "x"), ("a", "y")]


def test_a_trouble_that_comes_back_is_told_again(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lasts is told once, however long; one that was gone for minutes is news."""
    now = 1000.0
    monkeypatch.setattr(record_trouble, "time", SimpleNamespace(monotonic=lambda: now))
    for pause in (0.0, 250.0, 310.0, 310.0, 3600.0, 5.0):
        now += pause
        told.troubles.met("/a", GpuguardError("x"))
    assert told.kinds() == ["trouble", "trouble"]


def test_what_it_was_about(told: Told) -> None:
    """All that is below a control group, or below the root, has that one's name."""
    for group in ("/a.slice/b.scope", "/a.slice/b.scope/*", "/*", "/"):
        told.troubles.met(group, GpuguardError(f"x of {group}"))
    assert [entry["scope"] for entry in told.log] == ["b.scope", "b.scope", "/", "/"]


@pytest.mark.invariant(10)
def test_troubles_are_bounded(told: Told) -> None:
    """What is remembered of troubles grows neither with the number of scopes nor with the length of a text."""
    for number in range(5000):
        told.troubles.met(f"/{number}", GpuguardError("x" * 5000))
    assert len(told.troubles._met) <= 1024
    assert all(len(text) <= 1024 for text, _ in told.troubles._met.values())
    told.log.clear()
    told.troubles.met("/4999", GpuguardError("x" * 5000))  # the latest are the ones that are remembered
    assert told.log == []


def test_a_fault_of_ours_has_its_traceback(told: Told) -> None:
    """A fault in gpuguard is an error with the exception."""
    told.troubles.fault("/a", ZeroDivisionError())
    (entry,) = told.log
    assert entry["log_level"] == "error"
    assert isinstance(entry["exc_info"], ZeroDivisionError)


def test_a_damaged_ledger(told: Told) -> None:
    """It is told which file, and what is wrong with it."""
    told.troubles.ledger_damaged("/run/gpuguard/ledger/7.json", "no JSON")
    assert (told.log[0]["path"], told.log[0]["reason"]) == ("/run/gpuguard/ledger/7.json", "no JSON")


@pytest.mark.invariant(10)
def test_not_all_whose_files_say_nothing_are_told_of(told: Told) -> None:
    """On some nodes no container's files are believed: a few show what is wrong."""
    for number in range(20):
        told.troubles.unbelieved(f"/{number}", GpuguardError("not root's alone"))
    assert told.kinds() == ["trouble"] * 3
