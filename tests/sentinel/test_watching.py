"""Scopes that are listened to, and those that cannot be. Needs root, and cgroup v1."""

from __future__ import annotations

import time

import pytest

from gpuguard.kernel.fanotify import Fanotify
from gpuguard.model.write import Watched, Write
from gpuguard.sentinel.scope import Happening
from gpuguard.sentinel.wire import Blind, Forget, Overflow
from tests.lab.node import Node
from tests.lab.scope import Scope
from tests.sentinel.driven import GPU, Driven, give, group, held, inode, listed, one, rules, until_whole
from tests.sentinel.inside import GPU0, GPU1, NULL, Inside, descriptors, refuse


@pytest.mark.parametrize("pause", [False, True], ids=["orders", "pause"])
def test_what_is_not_told_yet_is_told_when_it_cannot_be_watched(
    loop: Inside, monkeypatch: pytest.MonkeyPatch, *, pause: bool
) -> None:
    """A repair is not kept from the daemon because the next marks fail: at new orders, or after a pause."""
    scope = loop.watch(undeclared=(GPU0,), declared=(GPU1,))
    if pause:
        loop.writes._watching.rest(scope)
    scope.open = [Happening(scope, time.monotonic(), denied=True, pid=1, restored=rules(GPU0))]
    monkeypatch.setattr(Fanotify, "mark", refuse)
    if pause:
        loop.writes._watching._resume(scope)
    else:
        scope.heard_at_once = False
        loop.writes._watching.watch(scope.watched)
    said = loop.told()
    assert Blind("no space left") in said
    assert [message.restored for message in said if isinstance(message, Write)] == [rules(GPU0)]
    assert loop.writes._scopes.named(scope.watched.control_group) is None


@pytest.mark.parametrize("what", ["key", "mark"])
def test_what_cannot_be_watched_is_let_go_of(loop: Inside, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Nothing of it is open any more, and it is tried again later; a failure that is over is told."""
    loop.groups.make(loop.groups.scope)
    watched = Watched(loop.groups.named(loop.groups.scope), loop.groups.inode(loop.groups.scope), rules(GPU0))
    watching, before, began = loop.writes._watching, descriptors(), time.monotonic()
    with monkeypatch.context() as patch:
        patch.setattr(Fanotify, what, refuse)
        watching.watch(watched)
    assert (descriptors(), loop.writes._scopes.named(watched.control_group)) == (before, None)
    assert loop.told() == [Blind("no space left")]
    assert (loop.writes._timers.next or 0.0) > began + 9
    watching._try_again(watched)
    assert loop.told() == [Overflow()]
    assert loop.writes._scopes.named(watched.control_group) is not None
    watching._try_again(watched)
    assert loop.told() == []


def test_what_can_be_watched_again_is_told_when_it_is_the_last(loop: Inside) -> None:
    """Of several that could not; only the last orders are tried again."""
    slices = [Watched(f"/a{number}.slice", number) for number in range(2)]
    for watched in slices:
        loop.writes._watching.watch(watched)
    assert [type(message) for message in loop.said()] == [Blind, Blind]
    loop.writes._watching.forget("/a0.slice")
    loop.writes._watching._try_again(slices[0])
    assert loop.said() == []
    loop.writes._watching.forget("/a1.slice")
    assert loop.said() == [Overflow()]


def test_a_pause_lasts_whatever_the_daemon_says(loop: Inside) -> None:
    """New orders do not put the marks back, nor have it looked at; nor does it when others are."""
    scope = loop.watch(undeclared=(GPU0,))
    loop.writes._watching.rest(scope)
    loop.groups.deny(loop.groups.scope, "a")
    seen = scope.seen
    loop.watch(declared=(GPU0,))
    loop.writes._watching.look_at_all()
    assert (scope.resting, scope.seen, loop.groups.lines(loop.groups.scope)) == (True, seen, [])
    loop.watch(undeclared=(GPU0,))
    loop.writes._watching._resume(scope)
    assert (scope.resting, loop.groups.lines(loop.groups.scope)) == (False, [GPU0])


def test_the_end_of_a_pause_of_a_scope_that_is_gone(loop: Inside) -> None:
    """Its files are closed."""
    scope = loop.watch(undeclared=(GPU0,))
    loop.writes._watching.rest(scope)
    loop.writes._watching.forget(scope.watched.control_group)
    loop.writes._watching._resume(scope)
    assert (scope.closed, scope.resting) == (True, True)
    assert not set(scope.keys) & set(loop.writes._scopes.by_key)


@pytest.mark.parametrize("file", [0, 1], ids=["denied", "allowed"])
def test_the_last_of_too_many_events_is_of_a_scope_that_is_gone(loop: Inside, file: int) -> None:
    """Its files are closed, and their numbers perhaps another's: nothing is done to them."""
    scope = loop.watch(undeclared=(GPU0,))
    scope._since, scope._denies, scope._events = time.monotonic() + 1000.0, 500, 5000
    hear = (loop.writes._hearing.denied, lambda key, pid, _: loop.writes._hearing.allowed(key, pid))[file]
    scope.open = [Happening(scope, time.monotonic(), denied=True, pid=1)]
    loop.groups.path(loop.groups.scope).rmdir()
    hear(scope.keys[file], 0, None)
    assert scope.closed
    assert Overflow() not in loop.told()


@pytest.mark.cgroup("v1")
class TestOrders:
    """What the daemon says."""

    def test_what_is_missing_at_the_start_comes_back(self, sentinel: Driven, scope: Scope) -> None:
        """No write between an order and its marks is overlooked."""
        sentinel.watch(scope, ("c 195:1 rw",))
        write = one(sentinel.writes(), denied=False)
        assert (write.restored, write.writer) == (rules("c 195:1 rw"), None)
        assert not listed(scope).missing(rules("c 195:1 rw"))

    def test_new_orders(self, sentinel: Driven, scope: Scope) -> None:
        """The last ones hold."""
        sentinel.watch(scope)
        sentinel.watch(scope, GPU[:1])
        sentinel.caught_up()
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, GPU[0], NULL)
        assert one(sentinel.writes()).restored == rules(GPU[0])
        assert listed(scope).missing(rules(*GPU)) == rules(GPU[1])

    def test_forgotten(self, sentinel: Driven, scope: Scope) -> None:
        """Then it is not touched, and nothing is held of it."""
        sentinel.watch(scope)
        sentinel.tell(Forget(group(scope)))
        sentinel.caught_up()
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, NULL)
        assert not sentinel.caught_up()
        assert listed(scope).missing(rules(*GPU)) == rules(*GPU)
        assert held(sentinel) == (0, 0)

    def test_the_end_of_a_scope(self, sentinel: Driven, node_v1: Node) -> None:
        """Marks and descriptors go with it when the daemon says so; its name may be another's then."""
        scope = node_v1.scope()
        give(scope, *GPU)
        sentinel.watch(scope)
        sentinel.caught_up()
        assert held(sentinel) == (3, 2)
        name, ended = scope.name, group(scope)
        scope.stop()
        again = node_v1.scope(name)
        sentinel.watch(again)
        assert one(sentinel.writes(), denied=False).inode == inode(again)
        assert held(sentinel) == (3, 2)
        again.stop()
        sentinel.tell(Forget(ended))
        sentinel.caught_up()
        assert held(sentinel) == (0, 0)
