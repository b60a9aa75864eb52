"""The watch: coalesced, never dropped, one look at a time for each scope."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import NamedTuple, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.guard.watch import Watch


class Look(NamedTuple):
    """One look that was made: of what, asking systemd or not, and when it began in the order of all things."""

    group: str
    fresh: bool
    began: int


class Looker:
    """Looks, each of which lasts some turns of the loop, and keeps account of them."""

    def __init__(self, turns: Sequence[int] = ()) -> None:
        self.looks: list[Look] = []
        self.time = 0
        self.under_way: set[str] = set()
        self._turns = list(turns)

    async def look(self, group: str, fresh: bool) -> None:
        """Look at one scope."""
        assert group not in self.under_way, "two looks at one scope at once"
        self.under_way.add(group)
        self.looks.append(Look(group, fresh, self.tick()))
        try:
            for _ in range(self._turns.pop() if self._turns else 1):
                await asyncio.sleep(0)
        finally:
            self.under_way.remove(group)

    def tick(self) -> int:
        """Return the next moment."""
        self.time += 1
        return self.time


class Hold:
    """A look that lasts until it is let go."""

    def __init__(self) -> None:
        self.looks: list[tuple[str, bool]] = []
        self.go = asyncio.Event()

    async def look(self, group: str, fresh: bool) -> None:
        """Look at one scope."""
        self.looks.append((group, fresh))
        await self.go.wait()


async def test_wants_before_a_look_are_one_look() -> None:
    """Any number of wants makes one look, a fresh one if one of them was."""
    looker = Looker()
    watch = Watch(looker.look)
    for fresh in (False, True, False):
        watch.want("/a", fresh=fresh)
    await watch.idle()
    assert looker.looks == [Look("/a", fresh=True, began=1)]


async def test_wants_during_a_look_are_one_more_look() -> None:
    """What is wanted while a look is under way may come too late for it: another one follows, one for all."""
    hold = Hold()
    watch = Watch(hold.look)
    watch.want("/a", fresh=True)
    await asyncio.sleep(0)
    for _ in range(5):
        watch.want("/a", fresh=False)
    hold.go.set()
    await watch.idle()
    assert hold.looks == [("/a", True), ("/a", False)]


async def test_scopes_do_not_wait_for_each_other() -> None:
    """A look that takes long holds up no other scope."""
    hold = Hold()
    watch = Watch(hold.look)
    for group in ("/a", "/b"):
        watch.want(group, fresh=False)
    await asyncio.sleep(0)
    assert hold.looks == [("/a", False), ("/b", False)]
    hold.go.set()
    await watch.idle()


async def test_looked_waits_for_a_look_that_began_after_it_was_asked_for() -> None:
    """Whoever asks for a look gets the result of a fresh one, not that of one under way."""
    hold = Hold()
    watch = Watch(hold.look)
    watch.want("/a", fresh=False)
    await asyncio.sleep(0)
    waiting = asyncio.ensure_future(watch.looked("/a"))
    await asyncio.sleep(0)
    assert not waiting.done()
    hold.go.set()
    await waiting
    assert hold.looks == [("/a", False), ("/a", True)]


async def test_close_ends_looks_under_way_and_those_to_come() -> None:
    """After close nothing is under way, nothing comes, and nobody waits for ever."""
    hold = Hold()
    watch = Watch(hold.look)
    watch.want("/a", fresh=False)
    await asyncio.sleep(0)
    watch.want("/a", fresh=False)
    watch.want("/b", fresh=False)
    await watch.close()
    await asyncio.wait_for(watch.idle(), 10)
    assert hold.looks == [("/a", False)]


GROUPS = st.sampled_from(["/a", "/b", "/c"])
# A want of a scope, fresh or not; or a turn of the loop.
STEPS = st.lists(st.none() | st.tuples(GROUPS, st.booleans()), max_size=30)


@pytest.mark.invariant(10)
@given(STEPS, st.lists(st.integers(0, 4), max_size=20))
def test_nothing_is_dropped_and_nothing_is_doubled(
    steps: Sequence[Optional[tuple[str, bool]]], turns: Sequence[int]
) -> None:
    """However wants and looks interleave, each want has a look that began later and is as fresh, and few are made."""

    async def play() -> None:
        looker = Looker(turns)
        watch = Watch(looker.look)
        wants = []
        for step in steps:
            if step is None:
                await asyncio.sleep(0)
            else:
                wants.append((*step, looker.tick()))
                watch.want(step[0], fresh=step[1])
                assert len(watch._wanted) <= 3
        await watch.idle()
        for group, fresh, at in wants:
            served = [look for look in looker.looks if look.group == group and look.began > at]
            assert served, "a want was dropped"
            assert served[0].fresh or not fresh, "a fresh look was wanted"
        assert len(looker.looks) <= len(wants)
        assert not watch._wanted
        assert not watch._tasks

    # Not asyncio.run: it takes away the loop that pytest-asyncio keeps, which Python 3.9 then complains of.
    with contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(play())


async def test_busy_until_the_look_is_over() -> None:
    """A scope is busy from the moment it is wanted to the end of the look, another one is not."""
    hold = Hold()
    watch = Watch(hold.look)
    assert not watch.busy("a")
    watch.want("a", fresh=False)
    assert (watch.busy("a"), watch.busy("b")) == (True, False)
    await asyncio.sleep(0)
    assert watch.busy("a")
    hold.go.set()
    await watch.idle()
    assert not watch.busy("a")
