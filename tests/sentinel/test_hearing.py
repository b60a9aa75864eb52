"""Who has written, and what he meant, on real scopes of a real systemd."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, cast

import pytest

from gpuguard.kernel.device_files import GLANCE
from gpuguard.model.process import INIT, Role
from gpuguard.model.write import Watched, Write
from gpuguard.sentinel import hearing
from gpuguard.sentinel.hearing import Hearing
from gpuguard.sentinel.reflex import Reflex
from gpuguard.sentinel.wire import Overflow
from tests.lab.scope import Scope
from tests.sentinel.driven import GPU, Driven, group, inode, listed, one, rules, shell, until_whole
from tests.sentinel.inside import GPU0, GPU1, NOBODY, NULL, Inside

TRIES = 10
TOGETHER = """
import os, sys, time
group = sys.argv[1]
inside = os.fork() == 0
if inside:
    for hierarchy in ("systemd", "unified"):
        with open(f"/sys/fs/cgroup/{hierarchy}{group}/cgroup.procs", "w") as procs:
            procs.write("0")
else:
    time.sleep(0.2)
with open(f"/sys/fs/cgroup/devices{group}/devices.allow", "wb", 0) as allow:
    if not inside:
        allow.write(b"c 195:1 rw")
        time.sleep(0.2)
    else:
        end = time.monotonic() + 0.4
        while time.monotonic() < end:
            allow.write(b"c 195:2 rw")
            time.sleep(0.0005)
    time.sleep(0.2)
"""


@pytest.mark.cgroup("v1")
class TestOnPurpose:
    """A single rule that an identified program of the host takes away."""

    def test_is_not_undone(self, sentinel: Driven, scope: Scope) -> None:
        """It is told, with what was there before and after."""
        sentinel.watch(scope)
        shell(sentinel, scope, f"echo {GPU[1]} > $D/devices.deny")
        write = one(sentinel.writes())
        assert (write.restored, write.whole_at, write.refused) == (frozenset(), None, False)
        assert write.before is not None
        assert write.after is not None
        assert write.after.missing(write.before.rules) == rules(GPU[1])
        assert listed(scope).missing(rules(*GPU)) == rules(GPU[1])

    def test_is_not_undone_by_the_next_rewrite(self, sentinel: Driven, scope: Scope) -> None:
        """Until the daemon has heard of it, neither a reload nor an order that crossed the news brings it back."""
        sentinel.watch(scope)
        shell(sentinel, scope, f"echo {GPU[1]} > $D/devices.deny")
        sentinel.watch(scope)
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, GPU[0])
        assert sentinel.writes()
        assert listed(scope).missing(rules(*GPU)) == rules(GPU[1])

    def test_is_over_when_somebody_gives_it_back(self, sentinel: Driven, scope: Scope) -> None:
        """Then it is healed as before."""
        sentinel.watch(scope)
        shell(sentinel, scope, f"echo {GPU[1]} > $D/devices.deny")
        shell(sentinel, scope, f"echo {GPU[1]} > $D/devices.allow")
        sentinel.caught_up()
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, *GPU)

    def test_a_rule_that_is_added_is_told(self, sentinel: Driven, scope: Scope) -> None:
        """With the writer, for the daemon to learn it."""
        sentinel.watch(scope)
        shell(sentinel, scope, "echo c 195:1 rw > $D/devices.allow")
        write = one(sentinel.writes(), denied=False)
        assert write.writer is not None
        assert write.writer.role is Role.HOST
        assert write.before is not None
        assert write.after is not None
        assert write.before.missing(write.after.rules) == rules("c 195:1 rw")

    @pytest.mark.invariant(1)
    def test_what_others_add_at_the_same_time_is_not_his(self, sentinel: Driven, scope: Scope) -> None:
        """Of a program of the host that writes together with the container it is not told what it has added."""
        sentinel.watch(scope)
        scope.node.path("/root/together.py").write_text(TOGETHER, encoding="ascii")
        for _ in range(TRIES):  # on a busy machine it may have been alone
            scope.node.run(["python3", "/root/together.py", group(scope)])
            writes = {write.writer.role: write for write in sentinel.writes() if write.writer is not None}
            theirs, his = writes.get(Role.CONTAINER), writes.get(Role.HOST)
            assert theirs is None or theirs.before is not None
            if theirs is not None and his is not None and his.before is None:
                break
            if his is not None and his.before is not None and his.after is not None:
                assert his.before.missing(his.after.rules) <= rules("c 195:1 rw")
        else:
            pytest.fail("never together")


@pytest.mark.cgroup("v1")
class TestGrowing:
    """A scope that is given its rules just now."""

    def test_what_was_there_for_a_moment_is_told(self, sentinel: Driven, scope: Scope) -> None:
        """A rule that is taken away 2 ms after it was written was in the list before. Mostly: machines are busy."""
        sentinel.tell(Watched(group(scope), inode(scope), heal=False, growing=True))
        seen = 0
        for _ in range(5 * TRIES):
            if seen > TRIES / 2:
                break
            shell(sentinel, scope, "echo c 195:1 rw > $D/devices.allow; sleep 0.002; echo c 195:1 rw > $D/devices.deny")
            before = next((write.before for write in sentinel.writes() if write.denied), None)
            seen += before is not None and not before.missing(rules("c 195:1 rw"))
        assert seen > TRIES / 2


@pytest.mark.parametrize(("parent", "others"), [(0, set[int]()), (1, set[int]()), (77, {77})])
def test_whose_writes_are_its_own(monkeypatch: pytest.MonkeyPatch, parent: int, others: set[int]) -> None:
    """Its daemon's as well: not systemd's where that is its parent, nor those of whoever cannot be seen."""
    monkeypatch.setattr(os, "getppid", lambda: parent)
    nothing = cast("Any", None)
    assert Hearing(nothing, nothing, nothing, nothing, nothing)._own == {os.getpid()} | others


class TestInside:
    """One event after the other, in this process."""

    def test_a_long_list_is_read_again(self, loop: Inside) -> None:
        """The end of a glance may be in the middle of a rule."""
        scope = loop.watch(undeclared=(GPU0, *(f"c 240:{minor} rw" for minor in range(400))))
        now, text = time.monotonic(), scope.files.read()
        loop.groups.deny(loop.groups.scope, "a")
        loop.writes._hearing.denied(scope.keys[0], INIT, Reflex(now, text[:GLANCE], now))
        (write,) = loop.told()
        assert isinstance(write, Write)
        assert (write.error, write.restored) == (None, scope.watched.undeclared)

    def test_what_the_daemon_denies_is_no_loss(self, loop: Inside) -> None:
        """It is seen, and left."""
        scope = loop.watch(undeclared=(GPU0,))
        loop.writes._hearing._own = frozenset({os.getppid()})
        loop.groups.deny(loop.groups.scope, "a")
        loop.writes._hearing.denied(scope.keys[0], os.getppid(), None)
        assert (scope.settling, loop.groups.lines(loop.groups.scope), loop.told()) == (True, [], [])

    @pytest.mark.invariant(10)
    def test_too_many_events(self, loop: Inside) -> None:
        """Of either kind: there is a pause."""
        scope = loop.watch(undeclared=(GPU0,))
        for hear, file in ((partial(loop.writes._hearing.denied, done=None), 0), (loop.writes._hearing.allowed, 1)):
            # In a second that does not end.
            scope._since, scope._denies, scope._events = time.monotonic() + 1000.0, 499, 4998
            hear(scope.keys[file], NOBODY)
            resting = [scope.resting]
            scope._denies, scope._events = 500, 5000
            hear(scope.keys[file], NOBODY)
            assert [*resting, scope.resting] == [False, True]
            assert Overflow() in loop.told()
            loop.writes._watching._resume(scope)

    @pytest.mark.parametrize(
        ("pid", "ago", "settles", "told"),
        [
            (os.getpid(), 9000.0, False, False),  # what it has given back itself
            (os.getppid(), 9000.0, True, False),  # the daemon
            (INIT, 500.0, True, False),  # the rest of a rewrite
            (INIT, 1500.0, True, True),
            (NOBODY, 500.0, True, True),
        ],
    )
    def test_who_is_told_to_have_allowed(
        self, loop: Inside, monkeypatch: pytest.MonkeyPatch, pid: int, ago: float, *, settles: bool, told: bool
    ) -> None:
        """Whoever is not the sentinel or the daemon, and what systemd does besides its rewrites; once."""
        monkeypatch.setattr(hearing, "_REWRITE", 1000.0)
        scope = loop.watch(undeclared=(GPU0,))
        scope.rewritten_at = time.monotonic() - ago
        loop.writes._hearing._own = frozenset({os.getpid(), os.getppid()})
        loop.groups.allow(loop.groups.scope, GPU1)
        loop.writes._hearing.allowed(scope.keys[1], pid)
        assert scope.settling is settles
        loop.writes._hearing._settled(scope)
        writes = [write for write in loop.told() if isinstance(write, Write)]
        assert [(write.pid, write.denied) for write in writes] == ([(pid, False)] if told else [])
        assert all(write.before is not None and write.before.missing(rules(GPU1)) for write in writes)
        loop.writes._hearing._settled(scope)
        assert loop.told() == []

    def test_the_last_of_systemd_s_allows(self, loop: Inside) -> None:
        """All is there again as soon as it is, and that is told; not while something is missing."""
        scope = loop.watch(declared=(GPU0,))
        loop.groups.deny(loop.groups.scope, "a")
        loop.writes._hearing.denied(scope.keys[0], INIT, None)
        for line, waits in ((NULL, 1), (GPU0, 0)):
            loop.groups.allow(loop.groups.scope, line)
            loop.writes._hearing.allowed(scope.keys[1], INIT)
            assert len(scope.open) == waits
        (write,) = loop.told()
        assert isinstance(write, Write)
        assert (write.restored, write.whole_at is not None) == (frozenset(), True)

    def test_a_scope_that_is_let_go_of_meanwhile(self, loop: Inside) -> None:
        """Nothing is told of what was allowed there."""
        scope = loop.watch(undeclared=(GPU0,))
        loop.writes._hearing.allowed(scope.keys[1], NOBODY)
        loop.writes._watching.forget(scope.watched.control_group)
        loop.writes._hearing._settled(scope)
        assert loop.told() == []
