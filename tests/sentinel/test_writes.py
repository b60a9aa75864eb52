"""Healing at the write, on real scopes of a real systemd."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpuguard.model.process import Role
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Watched, Write
from gpuguard.sentinel.wire import Blind, Forget, Overflow
from tests.kernel.groups import Groups
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.scope import BASICS, Scope
from tests.sentinel.driven import GPU, Driven, driven, driven_here, give, group, inode, listed, rules, until_whole

pytestmark = pytest.mark.cgroup("v1")

DECLARED = (*BASICS, "/dev/char/195:0 rw", "/dev/char/195:255 rw")
NULL = "c 1:3 rwm"
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
QUEUE = 16_384
"""Events that the kernel keeps for a fanotify group (fanotify(7), max_queued_events)."""


def shell(scope: Scope, text: str, prefix: tuple[str, ...] = ()) -> None:
    """Run a shell in the node; in its text $D is the scope's directory. It lives on for a moment, as an admin's."""
    scope.node.run([*prefix, "sh", "-c", f"D=/sys/fs/cgroup/devices{group(scope)}; {text}; sleep 0.1"])


def one(writes: list[Write], *, denied: bool = True) -> Write:
    """Return the only write of this kind."""
    (found,) = [write for write in writes if write.denied is denied]
    return found


class TestLosses:
    """What is taken away comes back."""

    @pytest.mark.parametrize(
        "argv", [["daemon-reload"], ["set-property", "--runtime", "SCOPE", "TasksMax=1000"]], ids=lambda argv: argv[0]
    )
    def test_systemd_rewrites(self, sentinel: Driven, scope: Scope, argv: list[str]) -> None:
        """What systemd does not know is written back, and it is told who asked systemd."""
        watched = sentinel.watch(scope)
        assert not sentinel.caught_up()
        command = ["systemctl", *(scope.name if word == "SCOPE" else word for word in argv)]
        scope.node.run(command)
        until_whole(scope, *GPU, NULL)
        write = one(sentinel.writes())
        assert (write.control_group, write.inode) == (watched.control_group, watched.inode)
        assert write.writer is not None
        assert (write.writer.pid, write.writer.role, write.writer.name) == (1, Role.SYSTEMD, "systemd")
        # systemctl may have its answer already when systemd comes to the scope.
        assert [process.command for process in write.requester[:1]] in ([tuple(command)], [])
        assert write.restored == rules(*GPU)
        assert write.before is not None
        assert not write.before.missing(rules(*GPU, NULL))
        assert write.after is not None
        assert write.after.missing(rules(*GPU)) == rules(*GPU)
        assert write.whole_at is not None
        assert 0 < write.whole_at - write.at < 1
        assert (write.refused, write.error) == (False, None)

    def test_everything_denied_by_hand(self, sentinel: Driven, scope: Scope) -> None:
        """A deny of all is a loss, whoever did it: he is named."""
        sentinel.watch(scope)
        shell(scope, "echo a > $D/devices.deny")
        write = one(sentinel.writes())
        assert write.writer is not None
        assert (write.writer.role, write.writer.name) == (Role.HOST, "sh")
        assert write.restored == rules(*GPU)
        assert not listed(scope).missing(rules(*GPU))

    def test_a_denial_that_does_not_show_is_told(self, scope: Scope, sentinel: Driven) -> None:
        """A group that allows by default shows one line, whatever it denies to those below."""
        open_ = scope.cgroup.parent / "open.scope"
        open_.mkdir()
        try:
            above = f"{group(scope).rpartition('/')[0]}/open.scope"
            sentinel.tell(Watched(above, open_.stat().st_ino, declared=rules(*GPU)))
            sentinel.caught_up()
            path = f"/sys/fs/cgroup/devices{above}/devices.deny"
            scope.node.run(["sh", "-c", f"echo c 195:0 rwm > {path}; sleep 0.1"])
            write = one(sentinel.writes())
            assert (write.control_group, write.after) == (above, RuleSet(unrestricted=True))
            assert write.writer is not None
            assert write.writer.role is Role.HOST
        finally:
            open_.rmdir()

    def test_one_that_writes_as_a_runtime_does(self, sentinel: Driven, scope: Scope) -> None:
        """Deny all, then allow one rule after the other, without the GPU."""
        sentinel.watch(scope)
        shell(scope, "echo a > $D/devices.deny; for n in 3 5 7 8 9; do echo c 1:$n rwm > $D/devices.allow; done")
        writes = sentinel.writes()
        assert one(writes).restored == rules(*GPU)
        assert listed(scope) == RuleSet.of(*GPU, *(f"c 1:{minor} rwm" for minor in (3, 5, 7, 8, 9)))

    def test_another_mount_namespace(self, sentinel: Driven, scope: Scope) -> None:
        """A writer elsewhere is seen as well."""
        sentinel.watch(scope)
        shell(scope, "echo a > $D/devices.deny", ("unshare", "--mount"))
        assert one(sentinel.writes()).restored == rules(*GPU)

    def test_a_writer_that_nobody_can_see(self, sentinel: Driven, scope: Scope) -> None:
        """From outside the pid namespace even a single rule is a loss: nobody is known to have meant it."""
        sentinel.watch(scope)
        sentinel.caught_up()
        (scope.cgroup / "devices.deny").write_text(GPU[0])
        until_whole(scope, *GPU)
        write = one(sentinel.writes())
        assert write.writer is None
        assert write.restored == rules(GPU[0])

    def test_two_scopes(self, sentinel: Driven, scope: Scope) -> None:
        """Each gets its own rules, and both know who asked."""
        other = scope.node.scope()
        give(other, "c 195:1 rw")
        sentinel.watch(scope)
        sentinel.watch(other, ("c 195:1 rw",))
        sentinel.caught_up()
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, *GPU)
        until_whole(other, "c 195:1 rw")
        assert {write.restored for write in sentinel.writes()} == {rules(*GPU), rules("c 195:1 rw")}
        assert listed(other).missing(rules(*GPU)) == rules(*GPU)
        other.stop()

    @pytest.mark.invariant(6)
    def test_only_a_unit_of_that_inode_is_written(self, sentinel: Driven, scope: Scope) -> None:
        """A slice, another unit's inode, or a way out of the hierarchy is refused, and nothing is written there."""
        before = listed(scope)
        wanted = rules("c 195:7 rw")
        sentinel.tell(Watched("/system.slice", inode(scope), wanted))
        sentinel.tell(Watched(group(scope), inode(scope) + 1, wanted))
        sentinel.tell(Watched("/../" + group(scope), inode(scope), wanted))
        said = sentinel.caught_up()
        assert [type(message) for message in said] == [Blind, Blind]
        time.sleep(0.05)
        assert listed(scope) == before

    def test_observe(self, sentinel: Driven, scope: Scope) -> None:
        """Where it must only look it tells, and writes nothing."""
        sentinel.watch(scope, heal=False)
        shell(scope, "echo a > $D/devices.deny")
        write = one(sentinel.writes())
        assert (write.restored, write.whole_at, write.after) == (frozenset(), None, RuleSet())
        assert listed(scope) == RuleSet()
        give(scope, *GPU)
        sentinel.caught_up()
        (scope.cgroup / "devices.deny").write_text("a")
        until(lambda: any(write.writer is None for write in sentinel.writes()), 5, "a write by nobody who can be seen")


class TestDeclared:
    """Rules that systemd writes itself."""

    @pytest.mark.invariant(8)
    def test_are_left_to_systemd(self, sentinel: Driven, node_v1: Node) -> None:
        """A reload rewrites them in a moment: nothing is written before systemd has had its time for that."""
        scope = node_v1.scope(device_allow=DECLARED)
        sentinel.watch(scope, (), GPU)
        for _ in range(5):
            node_v1.run(["systemctl", "daemon-reload"])
        until_whole(scope, *GPU)
        writes = sentinel.writes()
        assert writes
        # On a busy machine systemd may be kept from its next write for longer.
        late = [write for write in writes if write.restored]
        assert all(write.whole_at is not None and write.whole_at - write.at >= 0.002 for write in late)
        scope.stop()

    def test_come_back_after_a_second_look(self, sentinel: Driven, scope: Scope) -> None:
        """Where nobody writes them they are missed two milliseconds later."""
        sentinel.watch(scope, GPU[:1], GPU[1:])
        shell(scope, "echo a > $D/devices.deny")
        write = one(sentinel.writes())
        assert write.restored == rules(*GPU)
        assert write.whole_at is not None
        assert write.whole_at - write.at >= 0.002


class TestOnPurpose:
    """A single rule that an identified program of the host takes away."""

    def test_is_not_undone(self, sentinel: Driven, scope: Scope) -> None:
        """It is told, with what was there before and after."""
        sentinel.watch(scope)
        shell(scope, f"echo {GPU[1]} > $D/devices.deny")
        write = one(sentinel.writes())
        assert (write.restored, write.whole_at, write.refused) == (frozenset(), None, False)
        assert write.before is not None
        assert write.after is not None
        assert write.after.missing(write.before.rules) == rules(GPU[1])
        assert listed(scope).missing(rules(*GPU)) == rules(GPU[1])

    def test_is_not_undone_by_the_next_rewrite(self, sentinel: Driven, scope: Scope) -> None:
        """Until the daemon has heard of it, neither a reload nor an order that crossed the news brings it back."""
        sentinel.watch(scope)
        shell(scope, f"echo {GPU[1]} > $D/devices.deny")
        sentinel.watch(scope)
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, GPU[0])
        assert sentinel.writes()
        assert listed(scope).missing(rules(*GPU)) == rules(GPU[1])

    def test_is_over_when_somebody_gives_it_back(self, sentinel: Driven, scope: Scope) -> None:
        """Then it is healed as before."""
        sentinel.watch(scope)
        shell(scope, f"echo {GPU[1]} > $D/devices.deny")
        shell(scope, f"echo {GPU[1]} > $D/devices.allow")
        sentinel.caught_up()
        scope.node.run(["systemctl", "daemon-reload"])
        until_whole(scope, *GPU)

    def test_a_rule_that_is_added_is_told(self, sentinel: Driven, scope: Scope) -> None:
        """With the writer, for the daemon to learn it."""
        sentinel.watch(scope)
        shell(scope, "echo c 195:1 rw > $D/devices.allow")
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
        scope.node.run(["python3", "/root/together.py", group(scope)])
        writes = {write.writer.role: write for write in sentinel.writes() if write.writer is not None}
        assert set(writes) == {Role.HOST, Role.CONTAINER}
        assert writes[Role.HOST].before is None
        assert writes[Role.CONTAINER].before is not None


class TestGrowing:
    """A scope that is given its rules just now."""

    def test_what_was_there_for_a_moment_is_told(self, sentinel: Driven, scope: Scope) -> None:
        """A rule that is taken away 2 ms after it was written was in the list before. Mostly: machines are busy."""
        sentinel.tell(Watched(group(scope), inode(scope), heal=False, growing=True))
        seen = 0
        for _ in range(TRIES):
            shell(scope, "echo c 195:1 rw > $D/devices.allow; sleep 0.002; echo c 195:1 rw > $D/devices.deny")
            before = next((write.before for write in sentinel.writes() if write.denied), None)
            seen += before is not None and not before.missing(rules("c 195:1 rw"))
        assert seen > TRIES / 2


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

    def test_garbage(self, sentinel: Driven, scope: Scope) -> None:
        """It is told to look at everything, and goes on."""
        sentinel.socket.sendall(b"garbage\n" + b"x" * (3 << 20) + b'\n{"is":"Pong","number":1}\n')
        assert [type(message) for message in sentinel.caught_up()] == [Overflow, Overflow, Overflow]
        sentinel.watch(scope)
        shell(scope, "echo a > $D/devices.deny")
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
            assert started.process.wait(10) == 0


class TestTooMuch:
    """Fights, floods and full queues."""

    def test_a_fight_ends(self, node_v1: Node, scope: Scope) -> None:
        """Somebody who takes it away time and again gets it so in the end, and that is told."""
        with driven(node_v1, max_repairs=3) as sentinel:
            sentinel.watch(scope)
            shell(scope, "for n in 1 2 3 4 5; do echo a > $D/devices.deny; sleep 0.05; done")
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
            until(lambda: Overflow() in sentinel.caught_up(), 10, "an overflow")
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


class TestRest:
    """While nothing happens."""

    def test_costs_nothing(self, sentinel: Driven, scope: Scope) -> None:
        """It does not even wake up."""
        sentinel.watch(scope)
        sentinel.caught_up()
        time.sleep(0.1)
        before = spent(sentinel)
        time.sleep(1.0)
        assert spent(sentinel) == before

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


def inner(sentinel: Driven) -> int:
    """Return the sentinel's number outside the node."""
    launcher = sentinel.process.pid
    text = Path(f"/proc/{launcher}/task/{launcher}/children").read_text(encoding="ascii")
    return int(text.split()[0])


def held(sentinel: Driven) -> tuple[int, int]:
    """Return how many files of scopes it has open, and how many marks it has set."""
    process = Path(f"/proc/{inner(sentinel)}")
    links = [(fd.name, str(fd.readlink())) for fd in (process / "fd").iterdir()]
    infos = [(process / "fdinfo" / fd).read_text(encoding="ascii") for fd, to in links if "fanotify" in to]
    return sum("/devices." in to for _, to in links), sum(info.count("fanotify ino:") for info in infos)


def spent(sentinel: Driven) -> list[str]:
    """Return its processor time, and how often it was woken."""
    process = Path(f"/proc/{inner(sentinel)}")
    status = (process / "status").read_text(encoding="utf-8").splitlines()
    times = (process / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
    return [*times, *(line for line in status if "ctxt_switches" in line)]


class TestCalm:
    """Scopes of which systemd knows everything."""

    def test_are_heard_of(self, sentinel: Driven, node_v1: Node) -> None:
        """A reload is told with its writer; what somebody takes on purpose too, and it is not given back."""
        scope = node_v1.scope(device_allow=DECLARED)
        sentinel.watch(scope, (), GPU)
        node_v1.run(["systemctl", "daemon-reload"])
        assert [write.writer.pid for write in sentinel.writes() if write.writer and write.denied] == [1]
        shell(scope, f"echo {GPU[0]} > $D/devices.deny")
        assert one(sentinel.writes()).restored == frozenset()
        assert listed(scope).missing(rules(*GPU)) == rules(GPU[0])
        scope.stop()
