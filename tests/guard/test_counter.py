"""Requests while one guard follows another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gpuguard.errors import GpuguardError, NotFoundError
from gpuguard.guard.counter import Counter
from gpuguard.model.reports import ReleaseReport
from tests.report.support import until

ONE, TWO = (ReleaseReport(name, name, ()) for name in ("one", "two"))


class Slow:
    """A desk whose repair comes to no end. Make it inside the loop."""

    def __init__(self) -> None:
        self.begun, self.ended = asyncio.Event(), asyncio.Event()

    async def repair(self, _: dict[str, Any]) -> ReleaseReport:
        """Go on until cancelled."""
        self.begun.set()
        try:
            await asyncio.sleep(100)
        finally:
            self.ended.set()
        return ONE


async def test_who_asks_between_two_guards_waits_for_the_next() -> None:
    """Nobody is turned away, and each desk answers while its guard is at work."""
    counter = Counter()

    async def first(_: dict[str, Any]) -> ReleaseReport:
        return ONE

    async def second(_: dict[str, Any]) -> ReleaseReport:
        return TWO

    early = asyncio.ensure_future(counter.answer({}))
    await asyncio.sleep(0)
    counter.open(first)
    assert await asyncio.wait_for(early, 20) == ONE
    await counter.close()
    late = asyncio.ensure_future(counter.answer({}))
    await asyncio.sleep(0.02)
    assert not late.done()
    counter.open(second)
    assert await asyncio.wait_for(late, 20) == TWO


async def test_what_a_desk_raises_comes_through() -> None:
    """An error is the asker's, and the counter goes on."""
    counter = Counter()

    async def refuse(_: dict[str, Any]) -> ReleaseReport:
        raise NotFoundError("nobody")

    counter.open(refuse)
    for _ in range(2):
        with pytest.raises(NotFoundError, match="nobody"):
            await counter.answer({})


@pytest.mark.invariant(10)
async def test_work_ends_with_its_guard() -> None:
    """A repair under way does not go on behind the next guard's back."""
    counter, desk = Counter(), Slow()
    counter.open(desk.repair)
    asking = asyncio.ensure_future(counter.answer({}))
    await until(desk.begun.is_set)
    await counter.close()
    assert desk.ended.is_set()
    with pytest.raises(GpuguardError, match="ask again"):
        await asking


async def test_who_was_not_heard_yet_is_heard_by_the_next() -> None:
    """A desk that closes before it has begun with a request hands it on."""
    counter, served = Counter(), list[str]()

    async def first(_: dict[str, Any]) -> ReleaseReport:
        served.append("one")
        return ONE

    async def second(_: dict[str, Any]) -> ReleaseReport:
        return TWO

    counter.open(first)
    asking = asyncio.ensure_future(counter.answer({}))
    await asyncio.sleep(0)  # it is at the counter, and the desk has its first turn after this one
    await counter.close()
    assert served == []
    counter.open(second)
    assert await asyncio.wait_for(asking, 20) == TWO


async def test_who_goes_away_takes_his_request_along() -> None:
    """What nobody waits for any more is not done, and hinders no end."""
    counter, desk = Counter(), Slow()
    counter.open(desk.repair)
    asking = asyncio.ensure_future(counter.answer({}))
    await until(desk.begun.is_set)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    await until(desk.ended.is_set)
    await asyncio.wait_for(counter.close(), 20)
