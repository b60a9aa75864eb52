"""What is given back at once, what a little later, and when systemd is left to end its rewrite."""

from __future__ import annotations

import time
from typing import Optional, cast

import pytest

from gpuguard.kernel.device_files import DeviceFiles
from gpuguard.model.backoff import Backoff
from gpuguard.model.process import Process
from gpuguard.model.write import Watched
from gpuguard.sentinel import healing
from gpuguard.sentinel.reflex import Reflex
from gpuguard.sentinel.scope import Happening, Scope
from tests.model.looks import GROUP, rules

SYSTEMD, OTHER = 1, 77
BASICS = ("c 1:3 rwm", "c 5:0 rwm")
GPU0, GPU1 = "c 195:0 rw", "c 195:1 rw"
ADMIN = Process(OTHER, "bash", "/usr/bin/bash", control_group="/user.slice/session-3.scope", native=True)


class Files:
    """A list in memory, as the kernel keeps it, and what was written to it."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.written: list[str] = []

    def read(self) -> bytes:
        """Return the list."""
        return "".join(f"{line}\n" for line in self.lines).encode()

    def write(self, lines: tuple[bytes, ...]) -> Optional[str]:
        """Allow rules."""
        texts = [line.decode() for line in lines]
        self.written += texts
        self.lines += texts
        return None


def a_scope(
    files: Files,
    *,
    undeclared: tuple[str, ...] = (),
    declared: tuple[str, ...] = (),
    heal: bool = True,
    most: int = 2,
) -> Scope:
    """Return a scope whose list was looked at."""
    watched = Watched(GROUP, 7, rules(*undeclared), rules(*declared), heal)
    scope = Scope(watched, cast("DeviceFiles", files), Backoff(most, 60.0, 30.0))
    scope.look()
    return scope


def happening(scope: Scope, pid: int = SYSTEMD, ago: float = 0.0) -> Happening:
    """Return a write to devices.deny."""
    return Happening(scope, time.monotonic() - ago, denied=True, pid=pid, writer=ADMIN if pid == OTHER else None)


def test_what_systemd_does_not_know_is_given_back_at_once() -> None:
    """What it knows is left to it for a while."""
    files = Files(*BASICS, GPU0, GPU1)
    scope = a_scope(files, undeclared=(GPU0,), declared=(GPU1,))
    files.lines = []
    one = happening(scope)
    assert healing.at_once(one)
    assert files.written == [GPU0]
    assert (one.restored, one.whole_at) == (rules(GPU0), None)


@pytest.mark.invariant(8)
@pytest.mark.parametrize("there", [(), BASICS[:1], BASICS])
def test_while_systemd_is_at_it_nothing_is_written(there: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """However far it has come: others may have its processor between two rules."""
    monkeypatch.setattr(healing, "LONGEST_REWRITE", 1000.0)  # others may have this one's, too
    files = Files(*BASICS, GPU1)
    scope = a_scope(files, declared=(GPU1,))
    files.lines = []
    one = happening(scope)
    assert healing.at_once(one)
    files.lines = [*there]
    assert healing.the_rest([one], lambda _: True)
    files.lines = [*BASICS, GPU1]
    assert not healing.the_rest([one], lambda _: True)
    assert files.written == []
    assert one.whole_at is not None
    assert one.restored == frozenset()


def test_when_systemd_has_passed_a_rule_over_it_is_written() -> None:
    """It waits for something else by now: it is done, and has not given what it was thought to know."""
    files = Files(*BASICS, GPU1)
    scope = a_scope(files, declared=(GPU1,))
    files.lines = []
    one = happening(scope)
    assert healing.at_once(one)
    files.lines = [*BASICS]
    assert not healing.the_rest([one], lambda _: False)
    assert (files.written, one.restored) == ([GPU1], rules(GPU1))


def test_one_that_takes_for_ever_is_not_waited_for() -> None:
    """After 50 ms it is given back, whatever systemd does."""
    files = Files(*BASICS, GPU1)
    scope = a_scope(files, declared=(GPU1,))
    files.lines = []
    one = happening(scope, ago=0.06)
    assert healing.at_once(one)
    assert not healing.the_rest([one], lambda _: True)
    assert files.written == [GPU1]


@pytest.mark.parametrize("pid", [OTHER, 0])
def test_others_are_not_waited_for(pid: int) -> None:
    """Only systemd gives back what it takes."""
    files = Files(*BASICS, GPU1)
    scope = a_scope(files, declared=(GPU1,))
    files.lines = []
    one = happening(scope, pid)
    assert healing.at_once(one)
    assert not healing.the_rest([one], lambda _: True)
    assert files.written == [GPU1]


def test_what_is_meant_is_respected() -> None:
    """A single rule that an administrator takes is away until the daemon says otherwise."""
    files = Files(*BASICS, GPU0, GPU1)
    scope = a_scope(files, undeclared=(GPU0, GPU1))
    files.lines.remove(GPU0)
    one = happening(scope, OTHER)
    assert not healing.at_once(one)
    assert (files.written, scope.revoked) == ([], rules(GPU0))


def test_where_more_is_missing_nothing_is_meant() -> None:
    """Something was taken before, by whomever: it is a loss."""
    files = Files(*BASICS, GPU0)
    scope = a_scope(files, undeclared=(GPU0, GPU1))
    files.lines.remove(GPU0)
    healing.at_once(happening(scope, OTHER))
    assert (files.written, scope.revoked) == ([GPU0, GPU1], frozenset())


def test_a_fight_ends_in_a_pause() -> None:
    """Two repairs after another than systemd are made, the third is refused; after systemd any number."""
    files = Files(*BASICS, GPU0)
    scope = a_scope(files, undeclared=(GPU0,))
    for refused in (False, False, True):
        files.lines = []
        one = happening(scope, OTHER)
        healing.at_once(one)
        assert one.refused is refused
    one = happening(scope)
    healing.at_once(one)
    assert one.restored == rules(GPU0)


def test_where_it_must_only_look() -> None:
    """Nothing is written, nor looked for again."""
    files = Files(*BASICS, GPU0, GPU1)
    scope = a_scope(files, undeclared=(GPU0,), declared=(GPU1,), heal=False)
    files.lines = []
    one = happening(scope)
    assert not healing.at_once(one)
    scope.open = [one]
    assert not healing.the_rest([one], lambda _: False)
    assert (files.written, one.restored, one.refused, one.after) == ([], frozenset(), False, b"")


@pytest.mark.parametrize(
    ("there", "again", "whole", "restored"),
    [
        ([GPU0, GPU1], False, True, (GPU0,)),
        ([GPU0], True, False, (GPU0,)),  # systemd is about to write the other
        ([GPU1], False, False, ()),  # somebody has taken it again
    ],
)
def test_what_came_of_what_was_done_at_once(there: list[str], again: bool, whole: bool, restored: tuple[str]) -> None:
    """It is said of what is read back, and when it was written."""
    files = Files(*BASICS, GPU0, GPU1)
    scope = a_scope(files, undeclared=(GPU0,), declared=(GPU1,))
    files.lines, before = there, scope.seen
    one = happening(scope)
    assert healing.after_reflex(one, Reflex(5.0, b"", 6.0)) is again
    assert (one.before, one.after, one.restored) == (before, b"", rules(*restored))
    assert one.whole_at == (6.0 if whole else None)


def test_where_nothing_was_lost_nothing_is_whole_again() -> None:
    """Of what gpuguard guards: systemd may have taken something else."""
    files = Files(*BASICS, GPU0)
    scope = a_scope(files, undeclared=(GPU0,))
    one = happening(scope)
    assert not healing.after_reflex(one, Reflex(5.0, f"{GPU0}\n".encode(), 6.0))
    assert (one.restored, one.whole_at) == (frozenset(), None)


@pytest.mark.parametrize("most", [1, 2])
def test_both_looks_are_one_repair(most: int) -> None:
    """What is given back at once and what a little later; so often as it is allowed."""
    files = Files(*BASICS, GPU0, GPU1)
    scope = a_scope(files, undeclared=(GPU0,), declared=(GPU1,), most=most)
    for number in range(most + 1):
        files.lines = []
        one = happening(scope, OTHER)
        if healing.at_once(one):
            healing.the_rest([one], lambda _: False)
        assert (one.refused, one.restored) == ((False, rules(GPU0, GPU1)) if number < most else (True, frozenset()))


def test_what_systemd_took_as_well_counts_for_nobody() -> None:
    """It is given back however often others have taken something."""
    files = Files(*BASICS, GPU1)
    scope = a_scope(files, declared=(GPU1,), most=1)
    for _ in range(2):
        files.lines = []
        both = [happening(scope, OTHER, ago=0.1), happening(scope, ago=0.1)]
        assert all(healing.at_once(one) for one in both)
        assert not healing.the_rest(both, lambda _: False)
        assert [one.restored for one in both] == [frozenset(), rules(GPU1)]
        assert all(one.whole_at is not None for one in both)
