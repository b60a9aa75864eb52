"""A declared rule that is missing is systemd's to write, as long as it is at work: the daemon's second look."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuguard.guard import patience
from gpuguard.model.device_list import Payload
from gpuguard.model.state import State
from gpuguard.model.write import LONGEST_REWRITE, Write
from tests.guard.account import Account
from tests.guard.conftest import Station
from tests.guard.post import NEVER, Post
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0, UNSPELT = "c 195:0 rw", "c *:7 rw"
RUNS, WAITS = "R", "S"
BUSY = 0.02
"""Seconds: longer than a flat second look by far."""


def is_seen(sim: SimNode, state: str) -> None:
    """Have the node's /proc show systemd in a state."""
    stat = sim.path("/proc/1/stat")
    stat.parent.mkdir(exist_ok=True)
    stat.write_text(f"1 (systemd) {state} 0 1 1 0 -1\n")


@pytest.fixture
def torn(sim: SimNode) -> SimScope:
    """Return a container; see `post`."""
    return sim.scope(hook_rules=[GPU0])


@pytest.fixture
async def post(sim: SimNode, torn: SimScope, station: Station) -> Post:
    """Return a guard that has declared the container's GPU, and looks when it is told to."""
    post = await station(sim, {"guard": {"poll_interval": NEVER}})
    await post.becomes(torn, State.PROTECTED)
    await post.quiet()
    return post


def list_of(scope: SimScope) -> Path:
    """Return the list of a scope, which systemd is thought to be writing."""
    return scope.cgroup / "devices.list"


@pytest.mark.invariant(8)
async def test_while_systemd_is_at_it_nothing_is_written(
    sim: SimNode, torn: SimScope, post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others may have its processor between two rules; what it then ends is no loss, and no deed."""
    monkeypatch.setattr(patience, "LONGEST_REWRITE", 60.0)  # the test's own turn may come late, too
    is_seen(sim, RUNS)
    account, told = Account(sim, torn), len(post.log)
    whole = list_of(torn).read_text()
    list_of(torn).write_text("c 1:3 rwm\n")
    looking = asyncio.ensure_future(post.guard.look(torn.group, fresh=False))
    await asyncio.sleep(BUSY)
    list_of(torn).write_text(whole)
    is_seen(sim, WAITS)
    await looking
    assert post.state(torn) is State.PROTECTED
    assert (account.written(), account.declared(), post.log[told:]) == ([], [], [])


async def test_one_that_takes_for_ever_is_not_waited_for(sim: SimNode, torn: SimScope, post: Post) -> None:
    """A declared rule that is not written is given back, whatever systemd does; not before its time is up."""
    is_seen(sim, RUNS)
    account = Account(sim, torn)
    torn.write_rules([GPU0], verb="deny")
    began = time.monotonic()
    await post.guard.look(torn.group, fresh=False)
    assert time.monotonic() - began >= LONGEST_REWRITE
    assert account.written() == [f"deny {GPU0}", f"allow {GPU0}"]
    assert post.state(torn) is State.PROTECTED


async def test_what_systemd_does_not_know_is_not_left_to_it(sim: SimNode, post: Post) -> None:
    """A rule that has no spelling is given back before anybody waits."""
    scope = sim.scope(hook_rules=[UNSPELT])
    post.clock.hurry()
    await post.becomes(scope, State.AT_RISK)
    is_seen(sim, RUNS)
    scope.write_rules([UNSPELT], verb="deny")
    looking = asyncio.ensure_future(post.guard.look(scope.group, fresh=False))
    await asyncio.sleep(0)
    assert UNSPELT in post.of(scope).deeds[0]
    await looking


class TestWaiting:
    """How long one second look is put off."""

    async def seconds(self, post: Post, scope: SimScope) -> float:
        """Return how long it was."""
        began = time.monotonic()
        await patience.wait(post.guard.parts, post.of(scope))
        return time.monotonic() - began

    @pytest.mark.parametrize(("state", "asked"), [(RUNS, True), (WAITS, False)])
    async def test_by_what_systemd_does(
        self, sim: SimNode, torn: SimScope, post: Post, state: str, *, asked: bool
    ) -> None:
        """One that waits for something else is done, and has not given what it was thought to know."""
        is_seen(sim, state)
        assert patience._at_work(post.guard.parts, post.of(torn)) is asked
        assert (await self.seconds(post, torn) >= LONGEST_REWRITE) or not asked

    async def test_others_are_not_waited_for(self, sim: SimNode, torn: SimScope, post: Post) -> None:
        """Only systemd gives back what it takes; what others took before the list was seen whole is of no matter."""
        is_seen(sim, RUNS)
        parts, scope = post.guard.parts, post.of(torn)
        write = Write(torn.group, scope.target.inode, time.monotonic(), denied=True, pid=77)
        for one, waits in (
            (replace(write, at=(scope.whole_at or 0.0) - 1.0), True),
            (write, False),
            (replace(write, pid=0), False),
            (replace(write, pid=1), True),
        ):
            parts.causes.wrote(one)
            assert patience._at_work(parts, scope) is waits

    async def test_a_group_below_is_not_systemd_s(self, sim: SimNode, torn: SimScope, post: Post) -> None:
        """It writes its unit's own list alone."""
        is_seen(sim, RUNS)
        scope = post.of(torn)
        assert scope.seen is not None
        scope.seen = replace(scope.seen, payload=Payload(f"{torn.group}/container", 9))
        assert not patience._at_work(post.guard.parts, scope)
