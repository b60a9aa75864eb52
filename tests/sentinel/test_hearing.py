"""Who has written, and what he meant, on real scopes of a real systemd."""

from __future__ import annotations

import pytest

from gpuguard.model.process import Role
from gpuguard.model.write import Watched
from tests.lab.scope import Scope
from tests.sentinel.driven import GPU, Driven, group, inode, listed, one, rules, shell, until_whole

pytestmark = pytest.mark.cgroup("v1")

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
