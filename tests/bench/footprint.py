"""What the daemon takes of the machine while nothing happens, and what a reload makes it do."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import Node

# The product's own defaults: what an operator gets.
_DEFAULTS = {"poll_interval": "5s", "settle": "1s"}
_HOUR = 3600
_RELOADS = 20


@dataclass(frozen=True)
class Usage:
    """Of one process: CPU in seconds since its start, memory in bytes."""

    cpu: float
    rss: int
    pss: int


def measure(node: Node, counts: tuple[int, ...], seconds: float) -> str:
    """Return the table: memory, CPU over `seconds` of idling, and CPU per reload, for each number of GPU scopes."""
    rows = []
    for count in counts:
        scopes = [node.scope() for _ in range(count)]
        for scope in scopes:
            hook.allow(scope.cgroup, GPU0)
        with Gpuguard(node, guard=_DEFAULTS, log={"level": "info"}) as guard:
            guard.start()
            for scope in scopes:
                guard.await_state(scope.name, "protected")
            guard.await_rest()
            before = usage(guard.daemon.pid)
            began = time.monotonic()
            time.sleep(seconds)
            after = usage(guard.daemon.pid)
            per_hour = (after.cpu - before.cpu) / (time.monotonic() - began) * _HOUR
            reload = _reloads(guard)
        for scope in scopes:
            scope.stop()
        memory = [f"{size / (1 << 20):.1f}" for size in (after.rss, after.pss)]
        rows.append([str(count), *memory, f"{per_hour:.1f}", f"{reload * 1000:.1f}"])
    header = ("GPU scopes", "RSS MiB", "PSS MiB", "CPU s/hour, idle", "CPU ms per reload")
    return table(f"The daemon, default settings, idle for {seconds:.0f} s", header, rows)


def _reloads(guard: Gpuguard) -> float:
    seen = guard.total("gpuguard_reloads_total")
    before = usage(guard.daemon.pid)
    for number in range(_RELOADS):
        guard.node.run(["systemctl", "daemon-reload"])
        guard.await_reloads(seen + number + 1)
    return (usage(guard.daemon.pid).cpu - before.cpu) / _RELOADS


def usage(pid: int) -> Usage:
    """Return what a process has used so far."""
    cpu, _ = processor(pid)
    sizes = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, size = line.split()[:2]
        sizes[name.rstrip(":")] = int(size) * 1024
    return Usage(cpu, sizes["Rss"], sizes["Pss"])


def processor(pid: int) -> tuple[float, float]:
    """Return for how long a process has run so far, and waited for a processor that others had, in seconds."""
    # The scheduler's own account, in nanoseconds: the ticks of /proc/PID/stat are 10 ms.
    tasks = [(task / "schedstat").read_text(encoding="ascii").split() for task in Path(f"/proc/{pid}/task").iterdir()]
    run, wait = (sum(int(task[field]) for task in tasks) / 1e9 for field in (0, 1))
    return run, wait
