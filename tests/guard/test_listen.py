"""What the event sources' reports lead to."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Optional

import pytest

from gpuguard.guard.clock import Clock
from gpuguard.guard.listen import Listener
from gpuguard.guard.mend import Target
from gpuguard.guard.scope import Scope
from gpuguard.guard.watch import Watch
from gpuguard.kernel.processes import Processes
from gpuguard.systemd import events
from tests.guard.made import entitled, scope
from tests.guard.post import Post
from tests.lab.sim.node import SimNode
from tests.report.support import until

A, B = "/system.slice/docker-a.scope", "/system.slice/docker-b.scope"


def known(group: str, unit_group: Optional[str] = None) -> Scope:
    """Return a container of which a guard knows."""
    found = scope(known=entitled())
    found.target = Target(PurePosixPath(unit_group or group).name, group, 7, unit_group or group)
    return found


class Ear:
    """A listener over a guard that knows two scopes; what looks it asks for is kept, and nobody looks."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.looks: list[tuple[str, bool]] = []
        guard = post.guard
        guard.scopes.update({group: known(group) for group in (A, B)})
        self.clock = Clock(guard, Watch(self.look), 300.0, 1.0)
        self.causes = guard.parts.causes
        self.listener = Listener(guard, Watch(self.look), self.clock, post.assembly.link, post.assembly.processes)

    async def look(self, control_group: str, fresh: bool) -> None:
        """Keep account of a look."""
        self.looks.append((control_group, fresh))

    async def take(self, *reports: events.Event) -> list[tuple[str, bool]]:
        """Take events; return the looks that they led to at once."""
        self.looks.clear()
        for event in reports:
            self.listener.take(event)
        await asyncio.sleep(0)
        return sorted(self.looks)

    @property
    def hurried(self) -> bool:
        """Whether quick rounds were asked for."""
        return self.clock._quick_until > 0


@pytest.fixture
async def ear(sim: SimNode) -> AsyncIterator[Ear]:
    """Return a listener."""
    post = Post(sim)
    post.build()
    ear = Ear(post)
    yield ear
    ear.listener.close()
    await post.stop()


def called(member: str, unit: Optional[str], sender: str = ":1.99") -> events.Called:
    """Return a call that the monitor saw."""
    return events.Called(member, unit, ("CPUShares",), sender, 1)


class TestReloads:
    """Reloads of systemd."""

    async def test_looks_at_all_when_one_is_over(self, ear: Ear) -> None:
        """The end of a reload, not its beginning, leads to a fresh look at every scope, and to a round."""
        assert await ear.take(events.Reloading(active=True)) == []
        assert ear.causes.reloading(0.0)
        assert await ear.take(events.Reloading(active=False)) == [(A, True), (B, True)]
        assert not ear.causes.reloading(0.0)
        assert ear.clock._hurried.is_set()
        assert ear.post.value("gpuguard_reloads_total", kind="reload") == 1
        assert ear.post.value("gpuguard_source_events_total", source="signals") == 2

    async def test_has_the_sentinel_expect_losses_meanwhile(self, ear: Ear, monkeypatch: pytest.MonkeyPatch) -> None:
        """From the beginning to the end, and not for ever should that not be told."""
        told: list[float] = []
        monkeypatch.setattr(ear.post.guard.parts.sentinel, "awake", told.append)
        await ear.take(events.Reloading(active=True))
        assert told == [30.0]
        await ear.take(events.Reloading(active=False))
        assert told == [30.0, 0.0]

    async def test_knows_a_reexec(self, ear: Ear) -> None:
        """When systemd's name changes hands in the middle it counts as a daemon-reexec."""
        await ear.take(events.Reloading(active=True), events.ManagerReplaced(), events.Reloading(active=False))
        assert ear.post.value("gpuguard_reloads_total", kind="reexec") == 1


class TestUnits:
    """Units that come and go."""

    async def test_a_new_one_makes_quick_rounds(self, ear: Ear) -> None:
        """A new unit is found by the clock, which hurries."""
        assert await ear.take(events.UnitNew("docker-c.scope")) == []
        assert ear.hurried

    async def test_one_that_goes_is_looked_at(self, ear: Ear) -> None:
        """The scope of a unit that was removed is looked at; systemd need not be asked."""
        assert await ear.take(events.UnitRemoved("docker-a.scope")) == [(A, False)]
        assert await ear.take(events.UnitRemoved("docker-c.scope")) == []

    async def test_during_a_reload_going_means_nothing(self, ear: Ear) -> None:
        """Every unit is removed and added during a reload: known ones are no news, an unknown one is."""
        await ear.take(events.Reloading(active=True))
        assert await ear.take(events.UnitRemoved("docker-a.scope"), events.UnitNew("docker-a.scope")) == []
        assert not ear.hurried
        await ear.take(events.UnitNew("docker-c.scope"))
        assert ear.hurried


class TestCalls:
    """Calls that the monitor sees before systemd has carried them out."""

    async def test_a_property_change_is_looked_at_soon_and_again(
        self, ear: Ear, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As systemd may be quick or busy a look is asked for some times, afresh; the change is remembered."""
        asked: list[tuple[str, bool]] = []  # those that come together make one look
        monkeypatch.setattr(ear.listener._watch, "want", lambda group, *, fresh: asked.append((group, fresh)))
        assert await ear.take(called("SetUnitProperties", "docker-a.scope")) == []
        assert ear.causes.of_loss("docker-a.scope", A, time.monotonic()).cause == "property"
        await until(lambda: len(asked) == 3)
        assert asked == [(A, True)] * 3
        assert ear.listener._follow_up == {}

    @pytest.mark.invariant(10)
    async def test_a_stream_of_calls_neither_piles_up_nor_puts_off(self, ear: Ear) -> None:
        """However many calls come, few looks are to come for each scope, and they do come meanwhile."""
        for _ in range(200):
            await ear.take(called("SetUnitProperties", "docker-a.scope"))
        assert len(ear.listener._follow_up[A]) == 3
        deadline = asyncio.get_running_loop().time() + 20
        while not ear.looks and asyncio.get_running_loop().time() < deadline:
            ear.listener.take(called("SetUnitProperties", "docker-a.scope"))
            await asyncio.sleep(0.001)
        assert ear.looks == [(A, True)]

    async def test_our_own_call_is_no_news(self, ear: Ear) -> None:
        """What gpuguard declares itself is neither looked at for that nor blamed for a loss."""
        await ear.post.assembly.link.manager()
        await ear.take(called("SetUnitProperties", "docker-a.scope", ear.post.assembly.link.unique_name))
        assert ear.listener._follow_up == {}
        assert ear.causes.of_loss("docker-a.scope", A, time.monotonic()).cause == "unknown"

    async def test_of_a_service_that_holds_a_container(self, ear: Ear) -> None:
        """A change of the service is looked at in the container below it."""
        payload = "/system.slice/llm.service/libpod-payload-a"
        ear.post.guard.scopes[payload] = known(payload, "/system.slice/llm.service")
        await ear.take(called("SetUnitProperties", "llm.service"))
        assert set(ear.listener._follow_up) == {payload}

    async def test_of_a_unit_that_is_not_known(self, ear: Ear) -> None:
        """A change of an unknown unit leads to no look; a name that could not be read to nothing."""
        await ear.take(called("SetUnitProperties", "docker-c.scope"), called("SetUnitProperties", None))
        assert ear.listener._follow_up == {}

    async def test_a_start_makes_quick_rounds(self, ear: Ear) -> None:
        """A container that is started will be found by the clock, which hurries; a session is no concern."""
        await ear.take(called("Reload", None), called("StartTransientUnit", "session-1.scope"))
        assert not ear.hurried
        await ear.take(called("StartTransientUnit", f"docker-{'c' * 64}.scope"))
        assert ear.hurried

    async def test_close_drops_what_is_to_come(self, ear: Ear) -> None:
        """After close no look comes any more."""
        await ear.take(called("SetUnitProperties", "docker-a.scope"))
        handles = list(ear.listener._follow_up[A].values())
        ear.listener.close()
        assert all(handle.cancelled() for handle in handles)


class TestSources:
    """Sources that begin and end."""

    async def test_one_that_begins_may_have_missed_something(self, ear: Ear) -> None:
        """When a source begins to deliver everything is looked at once, and new scopes are looked for."""
        assert await ear.take(events.SourceUp(events.MONITOR)) == [(A, True), (B, True)]
        assert ear.hurried
        assert ear.post.value("gpuguard_source_up", source="monitor") == 1

    async def test_one_that_ends_is_told(self, ear: Ear) -> None:
        """The end of a source is told with its reason, and leads to no look."""
        assert await ear.take(events.SourceDown(events.SIGNALS, "the bus hung up")) == []
        (entry,) = ear.post.events("source_down")
        assert entry["reason"] == "the bus hung up"
        assert ear.post.value("gpuguard_source_up", source="signals") == 0

    async def test_signals_that_break_off_in_a_reload(self, ear: Ear) -> None:
        """A reload whose end will not be told does not last for ever."""
        await ear.take(events.Reloading(active=True))
        await ear.take(events.SourceDown(events.UNITS, "the bus hung up"))
        assert ear.post.guard.parts.causes.reloading(time.monotonic())
        await ear.take(events.SourceDown(events.SIGNALS, "the bus hung up"))
        assert not ear.post.guard.parts.causes.reloading(time.monotonic())


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to run a program as somebody else")
async def test_a_users_call_is_looked_after_and_blames_nobody(ear: Ear) -> None:
    """He was refused, as far as is known: what root does a moment later is not put down to him."""
    user = await asyncio.create_subprocess_exec("sleep", "60", user=65534, group=65534)
    ear.listener._processes = Processes(Path("/proc"))
    try:
        ear.listener.take(replace(called("Reload", None), pid=user.pid))
        ear.listener.take(replace(called("SetUnitProperties", "docker-a.scope"), pid=user.pid))
        assert ear.causes._reload_call is None
        assert ear.causes.of_loss("docker-a.scope", A, time.monotonic()).cause == "unknown"
        assert set(ear.listener._follow_up) == {A}
    finally:
        user.kill()
        await user.wait()
