"""How the sentinel's process is kept, with small programs in its place."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.guard import sentinel
from gpuguard.guard.sentinel import Sentinel, Told
from gpuguard.model.write import Standing, Watched
from gpuguard.sentinel.wire import LONGEST, Awake, Blind, Forget, Message, Overflow, Ping, Pong, decode, encode
from tests.guard.made import GPU0, GROUP
from tests.model.looks import rules
from tests.report.support import until

OTHER = "/system.slice/other.scope"
ORDERS = Watched(GROUP, 7, rules(GPU0))

# Each writes its number to a file, and what it is told to another.
BEGIN = """
import os, socket, sys, time
link = socket.socket(fileno=int(sys.argv[1]))
lines = link.makefile("rb")
say = link.sendall
with open(sys.argv[2], "a") as file: file.write(f"{os.getpid()}\\n")
"""
LISTEN = """
with open(sys.argv[3], "ab", 0) as heard:
    for line in lines: heard.write(line)
"""
ANSWER = """
with open(sys.argv[3], "ab", 0) as heard:
    for line in lines:
        heard.write(line)
        if b"Ping" in line: say(line.replace(b"Ping", b"Pong"))
"""
HANG = "time.sleep(60)"


class Kept:
    """A keeper at work, and all that it has told."""

    def __init__(self, directory: Path) -> None:
        self._started, self._heard = directory / "started", directory / "heard"
        self.program = ""
        self.sentinel = Sentinel(self._command)
        self.told: list[Told] = []
        self.ups = 0
        self.downs: list[str] = []
        self.task: Optional[asyncio.Task[None]] = None

    def _command(self, fd: int) -> list[str]:
        return [sys.executable, "-I", "-S", "-c", BEGIN + self.program, str(fd), str(self._started), str(self._heard)]

    def start(self, *says: Message, then: str = LISTEN) -> None:
        """Keep a program that says something, and then does something."""
        self.program = f"say({b''.join(map(encode, says))!r})\n{then}"
        self.task = asyncio.ensure_future(self.sentinel.run(self.told.append, self._up, self.downs.append))

    def _up(self) -> None:
        self.ups += 1

    async def stop(self) -> None:
        """End it, as the daemon does."""
        if self.task is not None:
            self.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.task

    @property
    def pids(self) -> list[int]:
        """The processes that were started."""
        return [int(line) for line in self._started.read_text().split()] if self._started.exists() else []

    @property
    def heard(self) -> list[Message]:
        """What they were told."""
        return [decode(line) for line in self._heard.read_bytes().splitlines()] if self._heard.exists() else []

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds, and for no longer than that while the keeper runs."""
        await until(lambda: condition() or (self.task is not None and self.task.done()))
        assert condition()


@pytest.fixture
async def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kept]:
    """Return a keeper; it is stopped after the test."""
    monkeypatch.setattr(sentinel, "_FIRST_PAUSE", 0.01)
    keeper = Kept(tmp_path)
    yield keeper
    await keeper.stop()


def lives(pid: int) -> bool:
    """Whether there is such a process."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


async def test_what_it_says_is_handed_on(kept: Kept) -> None:
    """It is up once it has said how it stands."""
    kept.start(Standing("nice"), Overflow())
    await kept.until(lambda: kept.told == [Standing("nice"), Overflow()])
    assert kept.ups == 1
    assert not kept.downs


async def test_orders_of_before_and_after_the_start_arrive(kept: Kept) -> None:
    """Each once: the same again costs nothing, and what was never watched need not be forgotten."""
    kept.sentinel.watch(ORDERS)
    kept.start()
    await kept.until(lambda: kept.heard == [ORDERS])
    kept.sentinel.watch(ORDERS)
    kept.sentinel.forget(OTHER)
    kept.sentinel.watch(Watched(OTHER, 8))
    kept.sentinel.forget(GROUP)
    await kept.until(lambda: Forget(GROUP) in kept.heard)
    assert kept.heard == [ORDERS, Watched(OTHER, 8), Forget(GROUP)]
    assert not kept.sentinel.watches(GROUP)
    assert kept.sentinel.watches(OTHER)


async def test_one_that_starts_while_losses_are_expected_is_told(kept: Kept) -> None:
    """For how much longer, and when that is over."""
    kept.sentinel.watch(ORDERS)
    kept.sentinel.awake(30.0)
    kept.start()
    await kept.until(lambda: len(kept.heard) > 1)
    orders, awake = kept.heard
    assert orders == ORDERS
    assert isinstance(awake, Awake)
    assert 0 < awake.seconds < 30.0
    kept.sentinel.awake(0.0)
    await kept.until(lambda: kept.heard[2:] == [Awake(0.0)])


def test_it_knows_what_it_has_said_without_a_process() -> None:
    """Nothing is started, and nothing raised."""
    keeper = Sentinel(lambda _: [])
    keeper.watch(Watched(GROUP, 7, declared=rules(GPU0)))
    assert keeper.declared(GROUP) == rules(GPU0)
    assert keeper.declared(OTHER) == frozenset()
    keeper.forget(GROUP)
    assert not keeper.watches(GROUP)


async def test_one_that_ends_is_started_again_and_told_all(kept: Kept) -> None:
    """Also of what was changed while there was none."""
    kept.sentinel.watch(ORDERS)
    kept.start(Standing("rr"), then="lines.readline()")
    await kept.until(lambda: len(kept.pids) == 1)
    kept.sentinel.watch(Watched(OTHER, 8))
    kept.program = LISTEN
    await kept.until(lambda: len(kept.heard) == 2)
    assert set(kept.heard) == {ORDERS, Watched(OTHER, 8)}
    assert kept.downs


async def test_one_that_always_ends_is_started_less_and_less_often(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses double, up to a longest one."""
    monkeypatch.setattr(sentinel, "_LONGEST_PAUSE", 0.04)
    pauses: list[float] = []
    sleep = asyncio.sleep

    async def rest(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", rest)
    kept.start(then="")
    while len(pauses) < 4 and not (kept.task and kept.task.done()):
        await sleep(0.01)
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.04]


async def test_one_that_lived_is_started_again_soon(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """It did not fail because of how it is started."""
    monkeypatch.setattr(sentinel, "_LIVED", 0.0)
    monkeypatch.setattr(sentinel, "_LONGEST_PAUSE", 3600.0)
    kept.start(then="")
    await kept.until(lambda: len(kept.pids) >= 14)  # by then a pause would be over a minute
    assert set(kept.downs) == {"it has ended"}


async def test_a_program_that_is_not_there_is_told_and_tried_again(kept: Kept) -> None:
    """It ends neither the keeper nor the daemon."""
    downs: list[str] = []
    task = asyncio.ensure_future(Sentinel(lambda _: ["/nowhere/python"]).run(kept.told.append, kept._up, downs.append))
    await until(lambda: len(downs) >= 2 or task.done())
    task.cancel()
    assert "/nowhere/python" in downs[0]


async def test_blind_is_down_and_an_overflow_tells_the_end_of_it(kept: Kept) -> None:
    """The Overflow is handed on, since everything is to be looked at."""
    kept.start(Standing("rr"), Overflow(), Blind("no fanotify"), Overflow())
    await kept.until(lambda: kept.told == [Standing("rr"), Overflow(), Overflow()])
    assert kept.ups == 2
    assert kept.downs == ["no fanotify"]


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b'{"is":"Writ"}\n', "not a message"),
        (b"\xff\n", "not a message"),
        (b"x" * (LONGEST + 2), "more than can be"),
    ],
    ids=["unknown", "no text", "too long"],
)
async def test_one_that_makes_no_sense_is_replaced(kept: Kept, garbage: bytes, reason: str) -> None:
    """What it has said before that counts."""
    kept.start(Standing("rr"), then=f"say({garbage[:1]!r} * {len(garbage) - 1} + {garbage[-1:]!r})\n{LISTEN}")
    if len(garbage) < LONGEST:
        kept.program = f"say({encode(Standing('rr'))!r})\nsay({garbage!r})\n{LISTEN}"
    await kept.until(lambda: bool(kept.downs))
    kept.program = LISTEN
    assert kept.told[0] == Standing("rr")
    assert reason in kept.downs[0]
    await kept.until(lambda: len(kept.pids) >= 2)


async def test_orders_for_the_sentinel_are_not_taken_from_it(kept: Kept) -> None:
    """Nor is what it says of a number that nobody waits for."""
    kept.start(Ping(3), Pong(77), ORDERS, Overflow())
    await kept.until(lambda: kept.told == [Overflow()])
    assert not kept.downs


async def test_others_have_their_turn_while_it_says_very_much(kept: Kept) -> None:
    """The daemon goes on living with a sentinel that has gone mad."""
    turns: list[int] = []

    async def turn() -> None:
        while True:
            turns.append(len(kept.told))
            await asyncio.sleep(0)

    other = asyncio.ensure_future(turn())
    kept.start(then=f"say({encode(Overflow())!r} * 20000)\n{LISTEN}")
    await kept.until(lambda: len(kept.told) == 20000)
    other.cancel()
    assert max(after - before for before, after in zip(turns, turns[1:])) <= 2 * sentinel._IN_A_ROW


async def test_it_waits_until_the_sentinel_has_caught_up(kept: Kept) -> None:
    """What it says before the answer is handed on by then."""
    kept.start(Standing("rr"), then=ANSWER.replace("if b", f"say({encode(Overflow())!r}); \n        if b"))
    await kept.until(lambda: kept.ups == 1)
    kept.sentinel.watch(ORDERS)
    await kept.sentinel.caught_up()
    assert kept.heard == [ORDERS, Ping(1)]
    assert Overflow() in kept.told


async def test_it_does_not_wait_for_nobody(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no sentinel none is waited for."""
    monkeypatch.setattr(sentinel, "_ANSWER", 60.0)
    await asyncio.wait_for(kept.sentinel.caught_up(), 20.0)


async def test_it_does_not_wait_for_long(kept: Kept) -> None:
    """A sentinel that hangs does not hold up the guard."""
    kept.start(Standing("rr"), then=LISTEN)
    await kept.until(lambda: kept.ups == 1)
    began = time.monotonic()
    await asyncio.wait_for(kept.sentinel.caught_up(), 20.0)
    assert time.monotonic() - began >= sentinel._ANSWER
    assert not kept.sentinel._waiting


async def test_one_that_hangs_is_replaced(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """By one that is told everything, when it has not answered for a while; one that was slow once stays."""
    monkeypatch.setattr(sentinel, "_SILENCE", 0.2)
    kept.sentinel.watch(ORDERS)
    kept.start(Standing("rr"), then=ANSWER)
    await kept.until(lambda: kept.ups == 1)
    [pid] = kept.pids
    for _ in range(2):
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(sentinel, "_ANSWER", 0.05)
        await kept.sentinel.caught_up()
        os.kill(pid, signal.SIGCONT)
        monkeypatch.setattr(sentinel, "_ANSWER", 20.0)
        await kept.sentinel.caught_up()
        await asyncio.sleep(0.25)
    assert kept.pids == [pid]
    monkeypatch.setattr(sentinel, "_ANSWER", 0.05)
    monkeypatch.setattr(sentinel, "_PARTING", 0.05)
    os.kill(pid, signal.SIGSTOP)
    while kept.pids == [pid]:
        await kept.sentinel.caught_up()
        await asyncio.sleep(0.01)
    await kept.until(lambda: kept.heard.count(ORDERS) == 2)
    assert not lives(pid)


async def test_the_end_of_the_sentinel_ends_the_waiting(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for an answer looks for himself."""
    monkeypatch.setattr(sentinel, "_ANSWER", 60.0)
    kept.start(Standing("rr"), then="lines.readline()")
    await kept.until(lambda: kept.ups == 1)
    await asyncio.wait_for(kept.sentinel.caught_up(), 20.0)


async def test_one_that_does_not_listen_is_replaced(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits for it does not grow without end."""
    monkeypatch.setattr(sentinel, "_MAX_UNSENT", 1 << 16)
    monkeypatch.setattr(sentinel, "_PARTING", 0.05)
    kept.start(Standing("rr"), then=HANG)
    await kept.until(lambda: kept.ups == 1)
    kept.program = LISTEN
    for inode in range(100):
        kept.sentinel.watch(Watched(GROUP + "x" * 10000, inode))
        await asyncio.sleep(0)
    await kept.until(lambda: len(kept.pids) == 2 and bool(kept.heard))
    assert kept.heard == [Watched(GROUP + "x" * 10000, 99)]
    assert not lives(kept.pids[0])


async def test_a_stop_ends_the_process(kept: Kept) -> None:
    """It sees the end of its socket."""
    kept.start(Standing("rr"))
    await kept.until(lambda: kept.ups == 1)
    [pid] = kept.pids
    await kept.stop()
    assert not lives(pid)
    kept.sentinel.watch(ORDERS)  # to nobody


async def test_one_that_hangs_is_killed_at_a_stop(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it listens to nobody."""
    monkeypatch.setattr(sentinel, "_PARTING", 0.1)
    kept.start(Standing("rr"), then=f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{HANG}")
    await kept.until(lambda: kept.ups == 1)
    [pid] = kept.pids
    await kept.stop()
    assert not lives(pid)


async def test_nothing_is_left_open(kept: Kept) -> None:
    """Neither by those that ended nor by the last."""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    kept.start(Standing("rr"), then="")
    await kept.until(lambda: len(kept.pids) >= 5)
    await kept.stop()
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before + 1)  # noqa: PTH208


async def test_a_stop_while_one_is_about_to_end_leaves_none(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has closed its socket and goes on is killed at once."""
    monkeypatch.setattr(sentinel, "_PARTING", 20.0)
    kept.start(Standing("rr"), then=f"lines.close(); link.close()\n{HANG}")
    await kept.until(lambda: kept.ups == 1)
    await kept.until(lambda: kept.sentinel._writer is None)  # its end is waited for
    [pid] = kept.pids
    began = time.monotonic()
    await kept.stop()
    assert time.monotonic() - began < sentinel._PARTING
    assert not lives(pid)
