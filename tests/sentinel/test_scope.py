"""What is held of a scope, on the kernel's own lists. Needs root."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuguard.kernel.device_files import OpenHierarchy
from gpuguard.model.backoff import Backoff
from gpuguard.model.write import Watched
from gpuguard.sentinel.scope import Scope
from tests.kernel.groups import Groups
from tests.sentinel.driven import rules

GPU0, GPU1, NULL = "c 195:0 rw", "c 195:1 rw", "c 1:3 rwm"


@pytest.fixture
def made(kernel: Groups) -> Iterator[tuple[Groups, Scope]]:
    """Return a scope with a GPU that systemd does not know, and one that it does."""
    inode = kernel.make(kernel.scope, NULL, GPU0, GPU1)
    files = OpenHierarchy(kernel.root).files(kernel.scope, inode)
    watched = Watched(kernel.scope, inode, rules(GPU0), rules(GPU1))
    yield kernel, Scope(watched, files, Backoff(5, 60, 30))
    files.close()


def test_what_is_missing(made: tuple[Groups, Scope]) -> None:
    """At once what nobody else will write, later the rest."""
    kernel, scope = made
    assert not scope.look()
    kernel.deny(kernel.scope, "a")
    lacking = scope.look()
    assert (lacking.at_once, lacking.later) == (rules(GPU0), rules(GPU1))
    assert scope.seen == b""


def test_declared_and_undeclared(made: tuple[Groups, Scope]) -> None:
    """A rule that is called both is written at once, and once."""
    kernel, scope = made
    scope.watch(Watched(kernel.scope, scope.watched.inode, rules(GPU0), rules(GPU0, GPU1)))
    kernel.deny(kernel.scope, "a")
    assert scope.look().every_line == (GPU0.encode(), GPU1.encode())


def test_what_is_written_first(made: tuple[Groups, Scope]) -> None:
    """What systemd is not known to write itself, without what was meant to go; nothing where it must only look."""
    kernel, scope = made
    first = [scope.first]
    scope.look()
    assert scope.beginning == scope.seen
    scope.respect(rules(GPU0))
    first.append(scope.first)
    scope.watch(Watched(kernel.scope, scope.watched.inode, rules(GPU1), heal=False))
    first.append(scope.first)
    assert first == [(GPU0.encode(),), (), ()]


@pytest.mark.invariant(1)
def test_what_was_meant_stays_away(made: tuple[Groups, Scope]) -> None:
    """Until somebody gives it back, or the daemon does not ask for it any more."""
    kernel, scope = made
    scope.respect(rules(GPU0))
    kernel.deny(kernel.scope, GPU0)
    assert not scope.look()
    scope.watch(scope.watched)
    assert not scope.look()
    kernel.allow(kernel.scope, GPU0)
    assert not scope.look()
    kernel.deny(kernel.scope, GPU0)
    assert scope.look().at_once == rules(GPU0)
    scope.respect(rules(GPU0))
    scope.watch(Watched(kernel.scope, scope.watched.inode, frozenset(), rules(GPU1)))
    assert scope.revoked == frozenset()


@pytest.mark.invariant(1)
def test_what_was_meant_stays_away_when_systemd_knows_it(made: tuple[Groups, Scope]) -> None:
    """It is not missed, nor is it counted to what should be there."""
    kernel, scope = made
    scope.respect(rules(GPU1))
    kernel.deny(kernel.scope, GPU1)
    assert not scope.look()
    assert scope.entitled == rules(GPU0)


def test_what_is_heard_at_once(made: tuple[Groups, Scope]) -> None:
    """Where systemd does not know all, or the list is still learnt."""
    scope = made[1]
    orders = [
        Watched(scope.watched.control_group, scope.watched.inode, declared=rules(GPU0), growing=growing)
        for growing in (False, True)
    ]
    urgent = [scope.urgent]
    for each in orders:
        scope.watch(each)
        urgent.append(scope.urgent)
    assert urgent == [True, False, True]


def test_too_many_events(made: tuple[Groups, Scope]) -> None:
    """By the second: what a storm of reloads makes is not too much, what a loop makes is."""
    scope = made[1]
    reloads = [
        scope.too_many(second + number / 1000, denied=not number % 13) for second in range(5) for number in range(900)
    ]
    assert not any(reloads)
    assert any(scope.too_many(100.0, denied=True) for _ in range(1000))
    assert not scope.too_many(102.0, denied=True)
    assert any(scope.too_many(200.0, denied=False) for _ in range(10_000))
