"""How soon many containers are whole again after one reload that took all their GPUs, on cgroup v2."""

from __future__ import annotations

import asyncio
import functools
import os
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
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
from tests.bench.footprint import processor
from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab.devices import GPU0
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.poll import until

WANTED = 300  # milliseconds

# Seconds. What measures must not take the processors that systemd and gpuguard need.
_PERIOD = 0.1
_LOOK = 0.005
_NICE = -10  # as the service has it
_PATIENCE = 30.0


@dataclass(frozen=True)
class _Healing:
    """Times in ms from `ended`, the end of the reload (time.monotonic()); `opened`: the start of the last denied open.

    `cpu` is what the daemon ran until the last was whole, `waited` how long it meanwhile waited for a processor.
    """

    ended: float
    lost: int
    first: float
    half: float
    last: float
    cpu: float
    waited: float
    opened: float = 0.0


def measure(node: Node, count: int, rounds: int) -> str:
    """Return the table: from systemd's Reloading(false) to the moment when all programs of a scope let the GPU through.

    Each round has fresh scopes, and a daemon that declares nothing before the loss.
    """
    found = [_round(node, count) for _ in range(rounds)]
    figures = ("first", "half", "last", "opened", "cpu", "waited")
    rows = [[str(one.lost), *(f"{getattr(one, figure):.0f}" for figure in figures)] for one in found]
    rows.append(["median", *(f"{median(getattr(one, figure) for one in found):.0f}" for figure in figures)])
    header = ("lost", "first", "half", f"last (want {WANTED})", "last denied open", "daemon ran", "daemon waited")
    title = f"{count} scopes on cgroup v2 lose their GPU to one reload; whole again after Reloading(false), in ms"
    return table(title, header, rows)


def _round(node: Node, count: int) -> _Healing:
    settings = {"declare": False, "poll_interval": "5s"}
    with Crowd(node, count, period=_PERIOD) as crowd, Gpuguard(node, guard=settings, log={"level": "info"}) as guard:
        guard.start()
        os.setpriority(os.PRIO_PROCESS, guard.daemon.pid, _NICE)
        until(lambda: guard.total("gpuguard_containers", state="at-risk") == count, _PATIENCE, "all to be known")
        guard.await_rest()
        crowd.seen()
        found = asyncio.run(_reload(node, crowd.cgroups, guard.daemon.pid))
        time.sleep(3 * _PERIOD)
        denied = max(opens.last_denied for opens in crowd.seen())
    return replace(found, opened=(denied - found.ended) * 1000)


async def _reload(node: Node, cgroups: list[Path], daemon: int) -> _Healing:
    """Reload and wait until all are whole. Raises LabError when they are not."""
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
        before = processor(daemon)
        lost, whole = await _whole(cgroups, moment + _PATIENCE)
        ran, waited = ((now - then) * 1000 for now, then in zip(processor(daemon), before))
        reload.communicate()
    finally:
        await bus.close()
    if len(whole) < len(cgroups):
        raise LabError(f"of {len(cgroups)} scopes {len(whole)} are whole {_PATIENCE:g} s after the reload")
    times = [(then - moment) * 1000 for then in whole]
    return _Healing(moment, lost, times[0], times[len(times) // 2], times[-1], ran, waited)


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
