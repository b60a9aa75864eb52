"""The sentinel on cgroup v2, as the daemon starts it, with a real systemd, and on this machine's own kernel."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from pathlib import Path

import pytest

from gpuguard.kernel import tracefs
from gpuguard.kernel.tracefs import Trace
from gpuguard.model.write import ProgramsChanged
from gpuguard.sentinel.link import DaemonGoneError, Link
from gpuguard.sentinel.programs import Pace, Programs
from gpuguard.sentinel.wire import Blind, Overflow, Ping, Pong, encode
from tests.lab import bpf as lab
from tests.lab.node import Node
from tests.lab.poll import until
from tests.sentinel.driven import Driven, driven

pytestmark = pytest.mark.cgroup("v2")

TRIES = 20
UNMOUNTED = ["unshare", "--mount", "sh", "-c", 'umount -l /sys/kernel/tracing /sys/kernel/debug; exec "$0" "$@"']


def changes(sentinel: Driven) -> list[ProgramsChanged]:
    """Return the changes that it tells until now."""
    return [message for message in sentinel.caught_up() if isinstance(message, ProgramsChanged)]


def instances(node: Node) -> set[str]:
    """Return those of the node's sentinels: their names have the node's pid namespace."""
    space = node.run(["stat", "-Lc", "%i", "/proc/self/ns/pid"]).stdout.strip()
    return {path.name for path in node.path("/sys/kernel/tracing/instances").glob(f"gpuguard-{space}-*")}


@pytest.mark.parametrize("asked", ["systemctl daemon-reload", "systemctl enable --quiet told.service"])
def test_for_whom_systemd_does_it(node: Node, asked: str) -> None:
    """The program that waits for systemd, and what started it. It may be gone too soon, but seldom."""
    unit = "[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"
    node.run(["tee", "/etc/systemd/system/told.service"], stdin=unit.encode())
    scope = node.scope()
    with driven(node) as sentinel:
        for _ in range(TRIES):
            sentinel.caught_up()
            node.run(["bash", "-c", f"{asked}; systemctl --quiet disable told.service; true"])
            found = [
                each for each in changes(sentinel) if asked in {" ".join(one.command) for one in each.requester[:1]}
            ]
            if found:
                break
        assert found, f"never seen in {TRIES} times"
        assert found[0].name in {"systemd", ""}
        assert found[0].writer is None  # the tracer's numbers are not the node's
        assert found[0].requester[1].program == "bash"
    scope.stop()


def test_a_property_change_is_told(node: Node) -> None:
    """Which systemd does when it has answered: who asked may have gone."""
    scope = node.scope()
    with driven(node) as sentinel:
        sentinel.caught_up()
        before = time.monotonic()
        node.run(["systemctl", "set-property", "--runtime", scope.name, "TasksMax=1000"])
        until(
            lambda: any(each.at > before for each in changes(sentinel) if each.name in {"systemd", ""}), 30, "a change"
        )
    scope.stop()


def test_a_flood_is_told_in_few_words(node: Node) -> None:
    """Thousands of changes are some reports, the first at once and the last soon after; not all are told of."""
    with driven(node) as sentinel, lab.scratch() as cgroup, lab.program(lab.ALLOW_ALL) as loaded:
        sentinel.caught_up()
        begin = time.monotonic()
        lab.attach(cgroup, loaded.fd)
        first = sentinel.hear()
        while not (isinstance(first, ProgramsChanged) and first.at >= begin):
            first = sentinel.hear()
        lab.detach(cgroup, loaded.fd)
        begin, flips = time.monotonic(), 0
        while flips < 3000 or time.monotonic() < begin + 2.0:
            lab.attach(cgroup, loaded.fd)
            lab.detach(cgroup, loaded.fd)
            flips += 1
        end = time.monotonic()
        said = sentinel.caught_up()
        mine = [each.at for each in said if isinstance(each, ProgramsChanged) and begin <= each.at <= end]
        assert 1 < len(mine) < 40 + 20 * (end - begin)
        assert Overflow() in said
        before = time.monotonic()
        lab.attach(cgroup, loaded.fd)
        # What the flood has left behind is read first, a few hundred calls at a time.
        until(lambda: any(each.at > before for each in changes(sentinel)), 30, "the change after the flood")


def test_it_ends_with_the_daemon(node: Node) -> None:
    """And with SIGTERM: no instance stays. What one left that was killed goes with the next."""
    with driven(node) as sentinel:
        sentinel.caught_up()
        assert len(instances(node)) == 1
    assert sentinel.process.returncode == 0
    assert not instances(node)
    with driven(node) as sentinel:
        ended(sentinel, signal.SIGTERM)
        assert not instances(node)
    with driven(node) as sentinel:
        sentinel.caught_up()
        left = instances(node)
        ended(sentinel, signal.SIGKILL)
        assert instances(node) == left
        with driven(node) as other:
            other.caught_up()
            assert len(instances(node) - left) == 1
            assert not instances(node) & left
    assert not instances(node)


def ended(sentinel: Driven, by: signal.Signals) -> None:
    """Send it a signal, and wait until it is gone."""
    sentinel.caught_up()
    os.killpg(sentinel.process.pid, by)
    while sentinel.socket.recv(4096):  # what it has said of others meanwhile
        pass


def test_no_tracer(node: Node) -> None:
    """It says so, and answers as ever."""
    with driven(node, prefix=UNMOUNTED) as sentinel:
        said = sentinel.caught_up() + sentinel.caught_up()
        assert [type(message) for message in said] == [Blind]
        assert "not mounted" in str(said[0])


def test_the_writer_is_a_process(node: Node) -> None:
    """Where the tracer's numbers are ours: the process of whatever thread it was, as programs in Go call."""
    if not tracefs.numbers_are_ours(Path("/proc")):
        pytest.skip("these tests are not in the outermost pid namespace: no number of the tracer's means anything")
    ours, theirs = socket.socketpair()
    link = Link(theirs.detach())
    programs = Programs(link, Path("/proc"))

    def watch() -> None:
        with contextlib.suppress(DaemonGoneError):
            programs.watch(trace)

    def told() -> bool:
        ours.sendall(encode(Ping(1)))
        return any(f'"pid":{os.getpid()},'.encode() in line for line in iter(lines.readline, encode(Pong(1))))

    with ours, ours.makefile("rb") as lines, contextlib.closing(Trace(node.path(tracefs.MOUNTS[0]))) as trace:
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            with lab.scratch() as cgroup, lab.program(lab.ALLOW_ALL) as loaded:
                seen = threading.Event()

                def call() -> None:
                    lab.attach(cgroup, loaded.fd)
                    seen.wait(30)

                caller = threading.Thread(target=call)
                caller.start()
                until(told, 20, "this process named")
                seen.set()
                caller.join()
        finally:
            ours.shutdown(socket.SHUT_RDWR)
            watching.join()
            link._socket.close()


def test_the_pace() -> None:
    """A burst is told every 10 ms, an endless one a few times a second, and one call now and then always at once."""
    pace, now, looks = Pace(), 100.0, 0
    while now < 110.0:
        pause = pace.pause(now)
        assert pause in {0.01, 0.16}
        assert looks >= 20 or pause == 0.01
        now, looks = now + pause, looks + 1
    assert looks < 170
    for now in range(120, 200):
        assert pace.pause(float(now)) == 0.01
