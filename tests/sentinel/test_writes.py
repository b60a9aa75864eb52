"""Healing at the write, on real scopes of a real systemd."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Optional

import pytest

from gpuguard.kernel.fanotify import Fanotify
from gpuguard.model.process import Process
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Watched, Write
from gpuguard.sentinel import reflex
from gpuguard.sentinel import writes as module
from gpuguard.sentinel.dozer import ASKED
from gpuguard.sentinel.link import DaemonGoneError
from gpuguard.sentinel.reflex import Answered, Reflex
from gpuguard.sentinel.wire import Awake, Forget, Overflow, Ping, Pong
from tests.kernel.groups import Groups
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.scope import Scope
from tests.sentinel.driven import (
    DECLARED,
    GPU,
    Driven,
    driven,
    driven_here,
    give,
    group,
    inner,
    listed,
    one,
    rules,
    shell,
    until_whole,
)
from tests.sentinel.inside import GPU0, GPU1, NOBODY, NULL, Inside, event, inside, refuse

QUEUE = 16_384
"""Events that the kernel keeps for a fanotify group (fanotify(7), max_queued_events)."""


@pytest.mark.cgroup("v1")
class TestDaemon:
    """What the daemon says, and its end."""

    def test_garbage(self, sentinel: Driven, scope: Scope) -> None:
        """It is told to look at everything, and goes on."""
        sentinel.socket.sendall(b"garbage\n" + b"x" * (3 << 20) + b'\n{"is":"Pong","number":1}\n')
        assert [type(message) for message in sentinel.caught_up()] == [Overflow, Overflow, Overflow]
        sentinel.watch(scope)
        shell(sentinel, scope, "echo a > $D/devices.deny")
        assert one(sentinel.writes()).restored == rules(*GPU)

    def test_the_daemon_s_death(self, node_v1: Node) -> None:
        """It ends with the socket, in good order."""
        with driven(node_v1) as started:
            process = started.process
        assert process.returncode == 0

    def test_told_to_end(self, node_v1: Node) -> None:
        """SIGTERM ends it in good order, SIGINT is for the daemon."""
        with driven(node_v1) as started:
            subprocess.run(["kill", "-INT", str(inner(started))], check=True)
            assert not started.caught_up()
            subprocess.run(["kill", "-TERM", str(inner(started))], check=True)
            assert started.process.wait(30) == 0


@pytest.mark.cgroup("v1")
class TestTooMuch:
    """Fights, floods and full queues."""

    def test_a_fight_ends(self, node_v1: Node, scope: Scope) -> None:
        """Somebody who takes it away time and again gets it so in the end, and that is told."""
        with driven(node_v1, max_repairs=3) as sentinel:
            sentinel.watch(scope)
            # One deny on another's heels may be heard with it: each that is given back is waited for.
            back = "until [ $(grep -c 'c 195:' $D/devices.list) = 2 ]; do sleep 0.01; done; sleep 0.2"
            shell(
                sentinel,
                scope,
                f"for n in 1 2 3; do echo a > $D/devices.deny; {back}; done;"
                "for n in 4 5; do echo a > $D/devices.deny; sleep 0.2; done",
            )
            writes = sentinel.writes()
            # Once refused it stays away, and there is nothing new to tell.
            assert [write.refused for write in writes] == [False, False, False, True]
            assert listed(scope) == RuleSet()
            # systemd is not the one that is fought with.
            node_v1.run(["systemctl", "daemon-reload"])
            until_whole(scope, *GPU)

    def test_thousands_of_writes(self, node_v1: Node, scope: Scope) -> None:
        """They cost it little, others are healed meanwhile, and it comes back to the scope by itself."""
        other = node_v1.scope()
        give(other, *GPU)
        text = f"fd = open('/sys/fs/cgroup/devices{group(scope)}/devices.deny', 'wb', 0)\n"
        text += "import time; end = time.monotonic() + 2\nwhile time.monotonic() < end: fd.write(b'a')\n"
        with driven(node_v1, max_repairs=100_000) as sentinel:
            sentinel.watch(scope)
            sentinel.watch(other)
            sentinel.caught_up()
            flood = node_v1.popen(["python3", "-c", text])
            time.sleep(1)
            node_v1.run(["systemctl", "daemon-reload"])
            until_whole(other, *GPU)
            flood.communicate()
            assert Overflow() in sentinel.caught_up()
            until_whole(scope, *GPU)
        other.stop()

    def test_more_events_than_the_queue_holds(self, kernel: Groups) -> None:
        """Then everything is looked at, and the daemon is told."""
        groups = [f"{kernel.slice}/docker-{number:064x}.scope" for number in range(120)]
        watched = [Watched(kernel.named(each), kernel.make(each, *GPU), rules(*GPU)) for each in groups]
        # An event for each process and file: what one process writes to one file counts once.
        writer = "import os, sys\nfiles = [os.open(f'{name}/devices.deny', os.O_WRONLY) for name in sys.argv[1:]]\n"
        writer += f"for _ in range({QUEUE // len(groups) + 2}):\n    if os.fork() == 0:\n"
        writer += "        for fd in files: os.write(fd, b'a')\n        os._exit(0)\n    os.wait()\n"
        with driven_here() as sentinel:
            for each in watched:
                sentinel.tell(each)
            sentinel.caught_up()
            sentinel.process.send_signal(signal.SIGSTOP)
            try:
                subprocess.run([sys.executable, "-c", writer, *map(str, map(kernel.path, groups))], check=True)
            finally:
                sentinel.process.send_signal(signal.SIGCONT)
            until(lambda: Overflow() in sentinel.caught_up(), 30, "an overflow")
            assert not any(RuleSet.of(*kernel.lines(each)).missing(rules(*GPU)) for each in groups)

    def test_a_daemon_that_does_not_listen(self, sentinel: Driven, scope: Scope) -> None:
        """Healing goes on, what cannot be told is counted, and told when he listens again."""
        text = "import sys, time\nfd = open(sys.argv[1], 'wb', 0)\n"
        text += "for n in range(1800):\n    fd.write(b'c 240:%d rw' % n); time.sleep(0.01 * (n > 1500))\n"
        sentinel.watch(scope)
        scope.node.run(["python3", "-c", text, f"/sys/fs/cgroup/devices{group(scope)}/devices.allow"])
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, *GPU)
        assert Overflow() in sentinel.caught_up()


@pytest.mark.cgroup("v1")
class TestRest:
    """While nothing happens."""

    def test_costs_nothing(self, sentinel: Driven, scope: Scope) -> None:
        """It does not even wake up."""
        sentinel.watch(scope)
        sentinel.caught_up()
        until(lambda: rests(sentinel), 20, "a second of rest")

    def test_is_small(self, sentinel: Driven, scope: Scope) -> None:
        """Bytes of memory that are its own, and its share of what others use too."""
        sentinel.watch(scope)
        sentinel.caught_up()
        text = Path(f"/proc/{inner(sentinel)}/smaps_rollup").read_text(encoding="ascii")
        (pss,) = [int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")]
        assert pss < 16_000

    def test_modules(self) -> None:
        """It is quick to start because it loads little."""
        text = "import json, sys; import gpuguard.sentinel.writes; print(json.dumps(sorted(sys.modules)))"
        said = subprocess.run([sys.executable, "-c", text], capture_output=True, check=True)
        assert not {"asyncio", "pathlib._local", "ssl", "logging", "pyroute2"} & set(json.loads(said.stdout))


@pytest.mark.cgroup("v1")
class TestCalm:
    """Scopes of which systemd knows everything."""

    def test_are_heard_of(self, sentinel: Driven, node_v1: Node) -> None:
        """A reload is told with its writer; what somebody takes on purpose too, and it is not given back."""
        scope = node_v1.scope(device_allow=DECLARED)
        sentinel.watch(scope, (), GPU)
        sentinel.caught_up()
        node_v1.run(["systemctl", "daemon-reload"])
        assert [write.writer.pid for write in sentinel.writes() if write.writer and write.denied] == [1]
        shell(sentinel, scope, f"echo {GPU[0]} > $D/devices.deny")
        assert one(sentinel.writes()).restored == frozenset()
        assert listed(scope).missing(rules(*GPU)) == rules(GPU[0])
        scope.stop()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an answer waited for as long as it takes: others may have this process's processor."""
    monkeypatch.setattr(module, "_PATIENCE", 1000.0)


def writes_of(loop: Inside) -> list[Write]:
    """Return the writes that it tells of now."""
    return [message for message in loop.told() if isinstance(message, Write)]


@pytest.mark.invariant(10)
def test_who_denies_without_end_keeps_nobody_waiting(loop: Inside) -> None:
    """What the daemon says is heard, its end for one, whatever else there is."""
    scope, reflexes, end = loop.watch(undeclared=(GPU0,)), loop.writes._reflexes, time.monotonic() + 20

    def endless() -> Answered:
        assert time.monotonic() < end, "it does not come to an end"
        answered = reflexes()
        os.write(scope.files.deny, b"a")
        return answered

    loop.writes._reflexes = endless
    os.write(scope.files.deny, b"a")
    loop.leave()
    with pytest.raises(DaemonGoneError):
        loop.writes.run()


@pytest.mark.invariant(10)
def test_a_systemd_that_comes_to_no_end_keeps_nobody_waiting(loop: Inside) -> None:
    """It is left alone with its rewrite, but not for ever."""
    end = time.monotonic() + 20

    def rewriting() -> Answered:
        assert time.monotonic() < end, "it does not come to an end"
        loop.writes._losses.quiet_until = time.monotonic() + 0.002
        return [], {}

    loop.writes._reflexes = rewriting
    loop.writes._losses.quiet_until = time.monotonic() + 0.002
    loop.leave()
    with pytest.raises(DaemonGoneError):
        loop.writes.run()


@pytest.mark.invariant(2)
@pytest.mark.timeout(60)
def test_a_hook_at_work_is_heard_also_in_the_midst_of_a_rewrite(loop: Inside) -> None:
    """Its container may be the next that systemd comes to: what was not seen by then is lost."""
    scope = loop.watch(growing=True)
    loop.writes._losses.quiet_until = time.monotonic() + 100
    loop.by_another("devices.allow", GPU0)
    loop.leave()
    with pytest.raises(DaemonGoneError):
        loop.writes.run()
    assert GPU0.encode() in (scope.seen or b"")


@pytest.mark.parametrize("growing", [True, False], ids=["a hook is at work", "none"])
def test_who_is_waited_for_in_the_midst_of_a_rewrite(
    loop: Inside, monkeypatch: pytest.MonkeyPatch, *, growing: bool
) -> None:
    """Allows are waited for only while a hook is at work; the daemon is heard each time, its end for one."""
    waited = []

    def wait(files: tuple[object, ...], *_: object) -> tuple[tuple[object, ...], ...]:
        waited.append(files)
        return (), (), ()

    monkeypatch.setattr(select, "select", wait)
    loop.watch(undeclared=(GPU0,), growing=growing)
    loop.writes._losses.quiet_until = time.monotonic() + 100
    loop.leave()
    with pytest.raises(DaemonGoneError):
        loop.writes.run()
    scopes = loop.writes._scopes
    assert waited == [(scopes.denies, scopes.allows) if growing else (scopes.denies,)]


@pytest.mark.parametrize("growing", [True, False], ids=["a hook is at work", "none"])
def test_what_systemd_denies_hushes_its_allows(
    kernel: Groups, monkeypatch: pytest.MonkeyPatch, *, growing: bool
) -> None:
    """While a hook is at work; nobody is woken by what was given back then."""
    waited = []

    def wait(files: tuple[int, ...], _: object, __: object, seconds: float) -> tuple[tuple[int, ...]]:
        waited.append((files, seconds))
        return ((),)

    monkeypatch.setattr(reflex, "SYSTEMD", os.getpid().to_bytes(4, sys.byteorder))
    monkeypatch.setattr(select, "select", wait)
    with inside(kernel, monkeypatch) as loop:
        scope = loop.watch(undeclared=(GPU0,), growing=growing)
        denies, allows = loop.writes._scopes.denies, loop.writes._scopes.allows
        os.write(scope.files.deny, b"a")
        assert list(loop.writes._reflexes()[1]) == [scope.keys[0]]
        assert scope.hushed is growing
        assert bool(allows.read()) is not growing
        loop.tell(Awake(60.0))
        os.write(scope.files.deny, b"a")
        loop.writes._reflexes()
        files = (denies.fileno(), allows.fileno()) if growing else (denies.fileno(),)
        assert waited == [(files, 0.0002), (files, 0.002)]  # who asks for a reload waits for it


@pytest.mark.invariant(2)
def test_systemd_wakes_nobody_while_it_rewrites_a_list(loop: Inside) -> None:
    """Who writes meanwhile is heard in calm; what he has written is seen soon after, and what comes later is heard."""
    scope = loop.watch(growing=True)
    scopes = loop.writes._scopes
    loop.writes._watching.lull(scope)
    pid = loop.by_another("devices.allow", GPU0)
    assert scopes.allows.read() == []
    assert scopes.calm.read() == [(scope.keys[1], pid)]
    assert GPU0.encode() not in (scope.seen or b"")
    time.sleep(0.01)
    loop.writes._timers.run()
    assert GPU0.encode() in (scope.seen or b"")
    pid = loop.by_another("devices.allow", GPU1)
    assert scopes.allows.read() == [(scope.keys[1], pid)]
    assert scopes.calm.read() == []


@pytest.mark.invariant(3)
@pytest.mark.parametrize("lull", [False, True], ids=["", "in a lull"])
def test_who_allows_is_told_with_what_he_allowed(loop: Inside, *, lull: bool) -> None:
    """Whether systemd rewrites the list just then, or not."""
    scope = loop.watch(growing=True)
    if lull:
        loop.writes._watching.lull(scope)
    with loop.writing("devices.allow", GPU0) as pid:
        loop.writes._read_allows()
        loop.writes._read_calm()
        time.sleep(0.02)
        loop.writes._timers.run()
        told = writes_of(loop)
    assert [(write.pid, write.writer is not None) for write in told] == [(pid, True)]
    assert told[0].after is not None
    assert told[0].after.covers(Rule.parse(GPU0))
    assert told[0].before is not None
    assert not told[0].before.covers(Rule.parse(GPU0))


@pytest.mark.invariant(2)
def test_a_second_rewrite_has_its_own_time(loop: Inside) -> None:
    """The end of the first one's does not end it."""
    scope = loop.watch(growing=True)
    loop.writes._watching.lull(scope)
    scope.lull_ends += 100
    time.sleep(0.01)
    loop.writes._timers.run()
    assert scope.hushed


def test_a_rewrite_ends_also_when_no_hook_is_at_work_any_more(loop: Inside) -> None:
    """What is allowed after it is heard."""
    scope = loop.watch(undeclared=(GPU0,), growing=True)
    loop.writes._watching.lull(scope)
    loop.watch(undeclared=(GPU0,))
    time.sleep(0.01)
    loop.writes._timers.run()
    pid = loop.by_another("devices.allow", GPU1)
    assert loop.writes._scopes.allows.read() == [(scope.keys[1], pid)]


def test_new_orders_in_a_lull_are_not_overtaken_by_its_end(loop: Inside) -> None:
    """Of a scope of which systemd knows all nobody is woken."""
    scope = loop.watch(declared=(GPU0,), growing=True)
    loop.writes._watching.lull(scope)
    loop.watch(declared=(GPU0,))
    assert (scope.hushed, scope.heard_at_once) == (False, False)
    time.sleep(0.01)
    loop.writes._timers.run()
    loop.by_another("devices.allow", GPU1)
    assert loop.writes._scopes.allows.read() == []


@pytest.mark.parametrize("gone", ["closed", "resting"])
def test_who_is_heard_no_more_is_not_heard_after_a_rewrite(loop: Inside, gone: str) -> None:
    """It has gone meanwhile, or writes too much; and nobody waits for its end."""
    scope = loop.watch(growing=True)
    loop.writes._watching.lull(scope)
    if gone == "closed":
        loop.writes._losses.drop(scope)
    else:
        loop.writes._watching.rest(scope)
    assert not scope.hushed
    time.sleep(0.01)
    loop.writes._timers.run()
    loop.by_another("devices.allow", GPU1)
    assert [*loop.writes._scopes.allows.read(), *loop.writes._scopes.calm.read()] == []


def test_what_cannot_be_hushed_is_heard(loop: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before."""
    scope = loop.watch(growing=True)

    with monkeypatch.context() as patch:
        patch.setattr(Fanotify, "mark", refuse)
        loop.writes._watching.lull(scope)
    assert not scope.hushed
    pid = loop.by_another("devices.allow", GPU1)
    assert loop.writes._scopes.allows.read() == [(scope.keys[1], pid)]


def test_an_answer_waits_for_the_end_of_a_rewrite(loop: Inside) -> None:
    """What was written meanwhile is not seen before."""
    scope = loop.watch(growing=True)
    loop.writes._watching.lull(scope)
    scope.lull_ends += 100
    loop.writes._pings = [(float("inf"), 1)]
    loop.writes._answer()
    assert Pong(1) not in loop.said()
    scope.lull_ends = 0.0
    loop.writes._watching._end_lull(scope)
    loop.writes._answer()
    assert Pong(1) in loop.said()


@pytest.mark.invariant(3)
def test_who_denies_beside_systemd_is_identified_first(loop: Inside) -> None:
    """He may be gone when all that systemd did is understood."""
    scope = loop.watch(undeclared=(GPU0,))
    asked = []
    identify = loop.writes._hearing.identify

    def identified(pid: int) -> Optional[Process]:
        asked.append((pid, scope.open or scope.rewritten_at > 0))
        return identify(pid)

    loop.writes._hearing.identify = identified  # type: ignore[method-assign]
    loop.writes._understand(([event(1, scope.keys[0]) + event(77, scope.keys[0])], {}))
    assert sorted(asked) == [(1, False), (77, False)]


@pytest.mark.parametrize(
    ("orders", "awake"),
    [
        ({"undeclared": (GPU0,)}, True),
        ({"growing": True}, True),
        ({"undeclared": (GPU0,), "heal": False}, False),
        ({"declared": (GPU0,)}, False),
    ],
    ids=["may be lost", "a hook is at work", "is not given back", "is systemd's own to write"],
)
def test_while_losses_are_expected_it_goes_round(loop: Inside, orders: dict[str, Any], awake: bool) -> None:
    """Each millisecond, where it can do something about them."""
    loop.watch(**orders)
    loop.tell(Awake(60.0))
    patience = loop.writes._patience()
    assert (patience is not None and patience <= 1.0) is awake


def test_it_rests_when_no_losses_are_expected_any_more(loop: Inside) -> None:
    """That they are over is said, or nothing is left to be lost, or some container would have harm of it."""
    loop.tell(Awake(60.0))
    patience = [loop.writes._patience()]
    scope = loop.watch(undeclared=(GPU0,))
    loop.tell(Awake(0.0))
    patience.append(loop.writes._patience())
    loop.tell(Awake(60.0))
    assert loop.writes._patience() is not None
    other = f"{loop.groups.slice}/docker-{'cd' * 32}.scope"
    declared = Watched(loop.groups.named(other), loop.groups.make(other, NULL, GPU0), declared=rules(GPU0))
    loop.tell(declared)
    patience.append(loop.writes._patience())
    loop.tell(Forget(declared.control_group))
    assert loop.writes._patience() is not None
    loop.tell(Forget(scope.watched.control_group))
    patience.append(loop.writes._patience())
    assert patience == [None] * 4


@pytest.mark.timeout(60)
def test_while_losses_are_expected_it_looks_whether_there_is_one(loop: Inside) -> None:
    """What has not just been done is as slow as the first time."""
    rounds = 0

    def nothing() -> Answered:
        nonlocal rounds
        rounds += 1
        if rounds == 10:
            loop.leave()
        return [], {}

    loop.writes._reflexes = nothing
    loop.watch(undeclared=(GPU0,))
    loop.tell(Awake(60.0))
    leaving = threading.Timer(20.0, loop.leave)
    leaving.start()
    with pytest.raises(DaemonGoneError):
        loop.writes.run()
    leaving.cancel()
    leaving.join()
    assert rounds >= 10


def test_what_is_written_while_marks_change_is_heard(loop: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Systemd knew of it all, and does not any more: between the one group and the other there is no gap."""
    scopes, mark = loop.writes._scopes, loop.writes._scopes.denies.mark
    scope = loop.watch(declared=(GPU0,))

    def late(fd: int) -> None:
        os.write(scope.files.deny, b"c 240:1 rw")
        mark(fd)

    monkeypatch.setattr(scopes.denies, "mark", late)
    loop.watch(undeclared=(GPU0,))
    assert [event[0] for event in scopes.calm.read() if event is not None] == [scope.keys[0]]
    loop.by_another("devices.deny", "c 240:1 rw")
    assert scopes.calm.read() == []
    assert len(scopes.denies.read()) == 1


@pytest.mark.usefixtures("patient")
def test_an_answer_waits_for_what_is_not_read(loop: Inside) -> None:
    """Somebody may have written since the loop was woken, and before it was asked."""
    loop.watch(undeclared=(GPU0,))
    loop.by_another("devices.allow", "c 240:1 rw")
    loop.writes._take(Ping(1))
    loop.writes._asked = 0
    loop.writes._answer()
    assert loop.said() == []
    loop.writes._pings = [(time.monotonic(), number) for _, number in loop.writes._pings]
    loop.writes._answer()
    assert loop.said() == [Pong(1)]


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("gone", [False, True])
def test_an_answer_waits_for_the_dozer(loop: Inside, *, gone: bool) -> None:
    """Until it has passed on what it holds, or is gone: then the loop hears for itself."""
    loop.writes._poll.register(loop.writes._dozer, select.POLLIN)
    loop.writes._take(Ping(1))
    loop.writes._answer()
    assert loop.said() == []
    assert loop.dozer.recv(10) == ASKED
    if gone:
        loop.dozer.close()
    else:
        loop.dozer.send(ASKED)
    loop.writes._doze()
    loop.writes._answer()
    assert loop.said() == [Pong(1)]
    scope = loop.watch(declared=(GPU0,))
    loop.by_another("devices.deny", "a")
    heard = [fd for fd, _ in loop.writes._poll.poll(0)]
    assert heard == ([loop.writes._scopes.calm.fileno()] if gone else [])
    assert scope.open == []


def test_a_question_has_the_calm_scopes_read(loop: Inside) -> None:
    """The dozer may be a while."""
    scope = loop.watch(declared=(GPU0,))
    loop.by_another("devices.deny", "a")
    loop.writes._take(Ping(1))
    assert [one.denied for one in scope.open] == [True]


def test_what_could_wait_is_of_either_kind(loop: Inside) -> None:
    """The key tells whether something was denied; what is no scope's is nobody's, and what got lost is looked for."""
    scope = loop.watch(declared=(GPU0,))
    loop.groups.deny(loop.groups.scope, "a")
    loop.writes._go_through([(scope.keys[1], NOBODY), (b"another", NOBODY)])
    assert (scope.settling, scope.open, loop.told()) == (True, [], [])
    loop.writes._go_through([(scope.keys[0], NOBODY)])
    assert [one.denied for one in scope.open] == [True]
    loop.writes._go_through([None])
    assert loop.told() == [Overflow()]
    assert [one.denied for one in scope.open] == [True, False]


@pytest.mark.parametrize("first", [1, NOBODY])
def test_what_was_given_back_is_told_with_systemd_s_write(loop: Inside, first: int) -> None:
    """Whoever else wrote at the same time: what is done at once is done for systemd's alone."""
    scope = loop.watch(undeclared=(GPU0,))
    now = time.monotonic()
    done = {scope.keys[0]: Reflex(now, b"", now)}
    both = (first, NOBODY if first == 1 else 1)
    loop.writes._understand(([b"".join(event(pid, scope.keys[0]) for pid in both)], done))
    assert [(write.pid, write.restored) for write in writes_of(loop)] == [(1, rules(GPU0))]


def rests(sentinel: Driven) -> bool:
    """Whether nothing is spent for a second; not so when something happens on the machine meanwhile."""
    before = spent(sentinel)
    time.sleep(1.0)
    return spent(sentinel) == before


def spent(sentinel: Driven) -> list[str]:
    """Return its processor time, and how often it was woken."""
    process = Path(f"/proc/{inner(sentinel)}")
    status = (process / "status").read_text(encoding="utf-8").splitlines()
    times = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return [*times, *(line for line in status if "ctxt_switches" in line)]
