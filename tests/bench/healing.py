"""How soon many containers are whole again after one reload that took all their GPUs, on cgroup v2."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from gpuguard.errors import ProgramGoneError
from gpuguard.kernel import bpf
from gpuguard.model.device_program import decode
from gpuguard.model.evaluate import permits
from gpuguard.model.rule import Access, Rule
from gpuguard.systemd.bus import DBUS, DBUS_PATH, Bus
from gpuguard.systemd.codec import Incoming
from gpuguard.systemd.manager import MANAGER, Manager
from tests.bench.crowd import Crowd
from tests.bench.footprint import usage
from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.poll import until

WANTED = 300  # milliseconds

_PERIOD = 0.02  # seconds; fifty openers in a tight loop would have both processors for themselves
_LOOK = 0.001
_PATIENCE = 30.0
_AFTERWARDS = 0.5


@dataclass(frozen=True)
class _Healing:
    """Times in ms from the end of the reload; `opened` is the start of the last denied open."""

    lost: int
    first: float
    half: float
    last: float
    opened: float
    cpu: float


def measure(node: Node, count: int, rounds: int) -> str:
    """Return the table: from systemd's Reloading(false) to the moment when all programs of a scope let the GPU through.

    Each round has fresh scopes, and a daemon that declares nothing before the loss.
    """
    found = [_round(node, count) for _ in range(rounds)]
    figures = ("first", "half", "last", "opened", "cpu")
    rows = [[str(one.lost), *(f"{getattr(one, figure):.0f}" for figure in figures)] for one in found]
    middle = [median(getattr(one, figure) for one in found) for figure in figures]
    rows.append(["median", *(f"{figure:.0f}" for figure in middle)])
    header = ("lost", "first whole, ms", "half", f"last (want {WANTED})", "last denied open", "CPU ms of the daemon")
    title = f"{count} scopes of a v2 node lose their GPU to one daemon-reload; all whole again after Reloading(false)"
    return table(title, header, rows)


def _round(node: Node, count: int) -> _Healing:
    settings = {"declare": False, "poll_interval": "5s"}
    with Crowd(node, count, period=_PERIOD) as crowd, Gpuguard(node, guard=settings, log={"level": "info"}) as guard:
        guard.start()
        until(lambda: guard.total("gpuguard_containers", state="at-risk") == count, _PATIENCE, "all to be known")
        guard.await_rest()
        crowd.seen()
        before = usage(guard.daemon.pid).cpu
        ended, lost, whole = asyncio.run(_reload(node, crowd.cgroups))
        time.sleep(_AFTERWARDS)
        denied = max(opens.last_denied for opens in crowd.seen())
        cpu = usage(guard.daemon.pid).cpu - before
    times = [(moment - ended) * 1000 for moment in whole]
    return _Healing(lost, times[0], times[len(times) // 2], times[-1], (denied - ended) * 1000, cpu * 1000)


async def _reload(node: Node, cgroups: list[Path]) -> tuple[float, int, list[float]]:
    """Reload; return when systemd said that it was over, how many were lost then, and when each was whole."""
    ended: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    def take(message: Incoming) -> None:
        if message.member == "Reloading" and message.body == [False] and not ended.done():
            ended.set_result(time.monotonic())

    bus = Bus(f"unix:path={node.path('/run/dbus/system_bus_socket')}", take)
    await bus.connect()
    try:
        rule = f"type='signal',interface='{MANAGER}',member='Reloading'"
        await bus.call(DBUS, DBUS_PATH, DBUS, "AddMatch", "s", [rule])
        await Manager(bus).subscribe()
        reload = node.popen(["systemctl", "daemon-reload"])
        moment = await ended
        lost, whole = await _whole(cgroups, moment + _PATIENCE)
        reload.communicate()
    finally:
        await bus.close()
    return moment, lost, whole


async def _whole(cgroups: list[Path], deadline: float) -> tuple[int, list[float]]:
    """Return how many of them the GPU is denied to, and when it no longer was for each."""
    with ExitStack() as stack:
        left = []
        for cgroup in cgroups:
            left.append(os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY))
            stack.callback(os.close, left[-1])
        lost, whole = -1, []
        while left and time.monotonic() < deadline:
            for directory in list(left):
                if _opens(directory):
                    left.remove(directory)
                    whole.append(time.monotonic())
            lost = len(left) if lost < 0 else lost
            await asyncio.sleep(_LOOK)
    return lost, whole


def _opens(directory: int) -> bool:
    """Whether all programs in force let the GPU be opened."""
    with suppress(ProgramGoneError):  # it changes right now
        return all(_lets_through(number) for number in bpf.query(directory, effective=True))
    return False


@functools.lru_cache(maxsize=4096)
def _lets_through(number: int) -> bool:
    return _permits(bpf.program(number).code)


@functools.lru_cache(maxsize=256)
def _permits(code: bytes) -> bool:
    rule = Rule.parse(f"{GPU0.rule} rw")
    return permits(decode(code), rule.kind, GPU0.major, GPU0.minor, Access.RW)
