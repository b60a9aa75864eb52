"""The clock: what it looks at, how often, and how it tells that it stands still."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from gpuguard.guard.clock import Clock
from gpuguard.guard.watch import Watch
from gpuguard.kernel import hierarchy
from gpuguard.model.state import State
from tests.guard.conftest import Station
from tests.guard.post import NEVER, Post
from tests.lab.sim.node import SimNode

GPU = "c 195:0 rw"


class Rounds:
    """A clock over a guard; what looks it asks for is kept, and nobody looks."""

    def __init__(self, post: Post, interval: float = 300.0) -> None:
        self.post = post
        self.looks: list[tuple[str, bool]] = []
        self.clock = Clock(post.guard, Watch(self.look), interval, 0.05)

    async def look(self, control_group: str, fresh: bool) -> None:
        """Keep account of a look."""
        self.looks.append((control_group, fresh))

    async def make_one(self) -> list[tuple[str, bool]]:
        """Make a round; return the looks that it led to."""
        self.looks.clear()
        self.clock.round()
        await asyncio.sleep(0)
        return sorted(self.looks)

    def made(self) -> float:
        """Return the number of rounds that run() made."""
        return self.post.value("gpuguard_poll_seconds_count")


@pytest.fixture
async def rounds(sim: SimNode) -> AsyncIterator[Rounds]:
    """Return a clock over a guard that has not begun."""
    post = Post(sim)
    post.build()
    yield Rounds(post)
    await post.stop()


class TestRound:
    """What a round looks at."""

    async def test_new_scopes(self, sim: SimNode, rounds: Rounds) -> None:
        """Every container's scope that is not known is looked at, other units are not."""
        scope = sim.scope(hook_rules=[GPU])
        sim.control("add-service", name="cron.service")
        assert await rounds.make_one() == [(scope.group, False)]

    @pytest.mark.invariant(8)
    async def test_not_what_has_not_changed(self, sim: SimNode, station: Station) -> None:
        """A protected container whose list is the same is not looked at closer, nor one without GPUs."""
        scope, other = sim.scope(hook_rules=[GPU]), sim.scope()
        post = await station(sim, {"guard": {"poll_interval": NEVER}})
        await post.becomes(scope, State.PROTECTED)
        await post.sources_up()
        rounds = Rounds(post)
        assert await rounds.make_one() == []
        for changed in (scope, other):
            changed.write_rules(["c 10:200 rwm"])
            assert await rounds.make_one() == [(changed.group, False)]
            await post.guard.look(changed.group, fresh=False)

    async def test_not_what_is_being_looked_at(self, sim: SimNode, rounds: Rounds) -> None:
        """A look that is under way is not followed by another one; the next round asks for it if there is need."""
        scope, go = sim.scope(hook_rules=[GPU]), asyncio.Event()

        async def look(control_group: str, fresh: bool) -> None:
            await rounds.look(control_group, fresh)
            await go.wait()

        watch = Watch(look)
        clock = Clock(rounds.post.guard, watch, 300.0, 0.05)
        watch.want(scope.group, fresh=True)
        await asyncio.sleep(0)
        clock.round()
        go.set()
        await watch.idle()
        assert rounds.looks == [(scope.group, True)]
        clock.round()
        await watch.idle()
        assert rounds.looks == [(scope.group, True), (scope.group, False)]

    async def test_what_is_gone(self, sim: SimNode, rounds: Rounds) -> None:
        """A scope that is known and not there any more is looked at, so that it is forgotten."""
        scope = sim.scope(hook_rules=[GPU])
        await rounds.post.guard.look(scope.group, fresh=False)
        scope.stop()
        assert await rounds.make_one() == [(scope.group, False)]

    async def test_what_has_a_shield(self, sim: SimNode, station: Station) -> None:
        """A shield that was left behind is seen."""
        scope = sim.scope(hook_rules=[GPU])
        post = await station(sim, {"guard": {"poll_interval": NEVER}})
        await post.becomes(scope, State.PROTECTED)
        await post.sources_up()
        (scope.cgroup / "gpuguard-shield").mkdir()
        assert await Rounds(post).make_one() == [(scope.group, False)]

    @pytest.mark.invariant(4)
    async def test_what_is_there_also_when_proc_cannot_be_read(self, sim: SimNode, rounds: Rounds) -> None:
        """Without /proc/devices the scopes are looked at all the same; the trouble is told once."""
        scope = sim.scope(hook_rules=[GPU])
        sim.path("/proc/devices").unlink()
        for _ in range(3):
            assert await rounds.make_one() == [(scope.group, False)]
        assert len([entry for entry in rounds.post.log if "cannot read" in entry["event"]]) == 1

    @pytest.mark.invariant(10)
    async def test_that_there_is_more_than_it_looks_at(
        self, sim: SimNode, rounds: Rounds, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Directories beside the slices: it is told once that not all of them are looked into."""
        monkeypatch.setattr(hierarchy, "MOST_DIRECTORIES", 2)
        for name in ("one", "two", "three"):
            sim.path(f"/sys/fs/cgroup/devices/{name}/below").mkdir(parents=True)
        for _ in range(3):
            await rounds.make_one()
        (told,) = rounds.post.events("trouble")
        assert "directories are beside the slices" in told["reason"]


class TestRun:
    """When rounds are made."""

    async def running(self, rounds: Rounds) -> asyncio.Task[None]:
        """Run the clock; return when its first round was made."""
        task = asyncio.ensure_future(rounds.clock.run())
        await rounds.post.until(lambda: rounds.made() >= 1, "no round was made")
        return task

    async def test_at_once_when_asked(self, rounds: Rounds) -> None:
        """soon() makes one round now, however long the interval is."""
        task = await self.running(rounds)
        rounds.clock.soon()
        await rounds.post.until(lambda: rounds.made() == 2, "soon() made no round")
        await asyncio.sleep(0.3)
        assert rounds.made() == 2
        task.cancel()

    async def test_quickly_in_a_hurry(self, rounds: Rounds) -> None:
        """hurry() makes quick rounds for a while, and then the interval holds again."""
        task = await self.running(rounds)
        rounds.clock.hurry()
        await rounds.post.until(lambda: rounds.made() >= 5, "hurry() made no quick rounds")
        rounds.clock._quick_until = 0.0
        await asyncio.sleep(0.3)
        made = rounds.made()
        await asyncio.sleep(0.3)
        assert rounds.made() == made
        task.cancel()

    async def test_by_the_interval(self, sim: SimNode) -> None:
        """Without anything else rounds come by the interval, and each is counted as an event of the clock."""
        post = Post(sim)
        post.build()
        rounds = Rounds(post, 0.02)
        task = await self.running(rounds)
        await post.until(lambda: rounds.made() >= 4, "the clock stands still")
        assert post.value("gpuguard_source_events_total", source="clock") >= 4
        task.cancel()
        await post.stop()


@pytest.mark.parametrize(("interval", "silence", "late"), [(5.0, 10.0, False), (5.0, 16.0, True), (300.0, 16.0, False)])
async def test_lateness(rounds: Rounds, interval: float, silence: float, late: bool) -> None:
    """A clock that made no round for three intervals, and no less than 15 s, says so."""
    clock = Clock(rounds.post.guard, rounds.post.assembly.watch, interval, 1.0)
    clock._last_round = time.monotonic() - silence
    assert (clock.late() is not None) is late
    if late:
        assert clock.late() == "no look at the containers for 16 s"
