"""What systemd and others take away, on real scopes of a real systemd."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpuguard.model.process import INIT, Role
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Watched, Write
from gpuguard.sentinel import healing
from gpuguard.sentinel.scope import Happening
from gpuguard.sentinel.wire import Blind
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.scope import Scope
from tests.sentinel.driven import DECLARED, GPU, Driven, give, group, inode, listed, one, rules, shell, until_whole
from tests.sentinel.inside import GPU0, NOBODY, NULL, Inside


@pytest.mark.cgroup("v1")
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
        scope.node.carried_out()
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
        assert write.whole_at > write.at
        assert (write.refused, write.error) == (False, None)

    def test_everything_denied_by_hand(self, sentinel: Driven, scope: Scope) -> None:
        """A deny of all is a loss, whoever did it: he is named."""
        sentinel.watch(scope)
        shell(sentinel, scope, "echo a > $D/devices.deny")
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
            shell(sentinel, scope, f"echo c 195:0 rwm > {path}")
            # A shell empties the file before it writes it: two writes, if each is read by itself.
            writes = sentinel.writes()
            assert {(write.control_group, write.denied, write.after) for write in writes} == {
                (above, True, RuleSet(unrestricted=True))
            }
            assert {write.writer.role for write in writes if write.writer is not None} == {Role.HOST}
        finally:
            open_.rmdir()

    def test_one_that_writes_as_a_runtime_does(self, sentinel: Driven, scope: Scope) -> None:
        """Deny all, then allow one rule after the other, without the GPU."""
        sentinel.watch(scope)
        shell(
            sentinel, scope, "echo a > $D/devices.deny; for n in 3 5 7 8 9; do echo c 1:$n rwm > $D/devices.allow; done"
        )
        writes = sentinel.writes()
        assert one(writes).restored == rules(*GPU)
        assert listed(scope) == RuleSet.of(*GPU, *(f"c 1:{minor} rwm" for minor in (3, 5, 7, 8, 9)))

    def test_another_mount_namespace(self, sentinel: Driven, scope: Scope) -> None:
        """A writer elsewhere is seen as well."""
        sentinel.watch(scope)
        shell(sentinel, scope, "echo a > $D/devices.deny", ("unshare", "--mount"))
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
        assert {write.restored for write in sentinel.writes() if write.denied} == {rules(*GPU), rules("c 195:1 rw")}
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
        shell(sentinel, scope, "echo a > $D/devices.deny")
        write = one(sentinel.writes())
        assert (write.restored, write.whole_at, write.after) == (frozenset(), None, RuleSet())
        assert listed(scope) == RuleSet()
        give(scope, *GPU)
        sentinel.caught_up()
        (scope.cgroup / "devices.deny").write_text("a")
        until(lambda: any(write.writer is None for write in sentinel.writes()), 20, "a write by nobody who can be seen")


@pytest.mark.cgroup("v1")
class TestDeclared:
    """Rules that systemd writes itself."""

    @pytest.mark.invariant(8)
    def test_are_left_to_systemd(self, sentinel: Driven, node_v1: Node) -> None:
        """A reload rewrites them in a moment: nothing is written before systemd has had its time for that."""
        scope = node_v1.scope(device_allow=DECLARED)
        sentinel.watch(scope, (), GPU)
        sentinel.caught_up()
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
        shell(sentinel, scope, "echo a > $D/devices.deny")
        write = one(sentinel.writes())
        assert write.restored == rules(*GPU)
        assert write.whole_at is not None
        assert write.whole_at - write.at >= 0.002


class TestInside:
    """One scope, in this process."""

    @pytest.mark.parametrize("pid", [INIT, NOBODY])
    def test_systemd_alone_is_left_alone(self, loop: Inside, pid: int) -> None:
        """For as long as it may take to write what it knows."""
        scope = loop.watch(declared=(GPU0,))
        loop.groups.deny(loop.groups.scope, "a")
        one = Happening(scope, time.monotonic(), denied=True, pid=pid)
        loop.writes._losses.heal(one)
        assert loop.writes._losses.quiet_until == (pytest.approx(one.at + 0.002) if pid == INIT else 0.0)
        assert scope.open == [one]

    def test_the_second_look(self, loop: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
        """It is of the last write, and put off while systemd is at it."""
        monkeypatch.setattr(healing, "LONGEST_REWRITE", 2000.0)
        losses, busy = loop.writes._losses, [False]
        scope = loop.watch(declared=(GPU0,))
        monkeypatch.setattr(loop.writes._teller, "runs", lambda _: busy[0])
        loop.groups.deny(loop.groups.scope, "a")
        for later in (0.0, 1000.0):
            losses.heal(Happening(scope, time.monotonic() + later, denied=True, pid=INIT))
        losses._look_again(scope)
        assert (len(scope.open), loop.groups.lines(loop.groups.scope)) == (2, [])
        scope.open[-1].at -= 1000.01
        busy[0] = True
        losses._look_again(scope)
        assert (len(scope.open), loop.groups.lines(loop.groups.scope)) == (2, [])
        busy[0] = False
        losses._look_again(scope)
        assert (scope.open, loop.groups.lines(loop.groups.scope)) == ([], [GPU0])
        assert [write.restored for write in loop.told() if isinstance(write, Write)] == [rules(GPU0), frozenset()]

    def test_where_it_must_only_look(self, loop: Inside) -> None:
        """What is missing when it is told to watch stays so."""
        scope = loop.watch(undeclared=(GPU0,))
        loop.groups.deny(loop.groups.scope, "a")
        loop.watch(undeclared=(GPU0,), heal=False)
        assert scope.open == []

    @pytest.mark.parametrize(
        ("told", "made"),
        [
            (False, {"pid": NOBODY}),
            (True, {"pid": INIT}),
            (True, {"pid": NOBODY, "after": b"a *:* rwm\n", "before": b"a *:* rwm\n"}),
            (False, {"pid": NOBODY, "denied": False, "after": b""}),
            (True, {"pid": NOBODY, "denied": True, "after": b""}),
            (True, {"pid": NOBODY, "denied": False, "after": b"", "refused": True}),
            (False, {"pid": NOBODY, "refused": True}),
            (True, {"pid": NOBODY, "denied": False, "restored": rules(GPU0)}),
            (True, {"pid": NOBODY, "denied": False, "error": "no"}),
        ],
    )
    def test_what_is_told(self, loop: Inside, made: dict[str, Any], *, told: bool) -> None:
        """What came to something: a write that changes nothing is told of systemd alone, or where it does not show."""
        scope = loop.watch(undeclared=(GPU0,))
        same = {"denied": True, "before": b"c 1:3 rwm\n", "after": b"c 1:3 rwm\n"}
        loop.writes._losses._over([Happening(scope, 1.0, **{**same, **made})])
        assert len(loop.told()) == told
