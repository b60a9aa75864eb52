"""What gpuguard takes of the machine while nothing happens, and what a reload makes it do."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.crowd import Crowd
from tests.bench.progress import tell
from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab.node import ROOT, Node
from tests.lab.poll import until
from tests.lab.process import children

# The product's own defaults: what an operator gets.
# Seconds in which the files of a container that is new to the daemon are looked for: these here have none.
_SEARCH = 20.0
_DEFAULTS = {"poll_interval": "5s", "settle": "1s"}
_HOUR = 3600
_RELOADS = 20
_PATIENCE = 120.0  # seconds


@dataclass(frozen=True)
class Usage:
    """Of one or several processes: CPU in seconds since their start, memory in bytes."""

    cpu: float
    rss: int
    pss: int


def measure(node: Node, counts: tuple[int, ...], seconds: float) -> str:
    """Return the table: memory, CPU over `seconds` of idling, and CPU per reload, for each number of GPU scopes.

    Of all processes of gpuguard's together.
    """
    # As installed: a daemon that has to compile itself keeps what that took.
    node.run([sys.executable, "-m", "compileall", "-q", ROOT / "gpuguard"])
    rows = []
    for count in counts:
        tell(f"footprint: {count} scopes")
        with Crowd(node, count), Gpuguard(node, guard=_DEFAULTS, log={"level": "info"}) as guard:
            guard.start()
            known = functools.partial(guard.total, "gpuguard_containers", state="protected")
            until(lambda: known() == count, _PATIENCE, f"{count} protected scopes")  # noqa: B023 - called here
            guard.await_rest()
            time.sleep(_SEARCH)
            pids = family(guard.daemon.pid)
            before, began = usages(pids), time.monotonic()
            time.sleep(seconds)
            after = usages(pids)
            core = (after.cpu - before.cpu) / (time.monotonic() - began)
            each = " + ".join(_megabytes(usage(pid).pss) for pid in pids)
            reload = _reloads(guard)
        memory = [each, _megabytes(after.pss), _megabytes(after.rss)]
        rows.append([str(count), *memory, f"{core * _HOUR:.1f}", f"{core:.3%}", f"{reload * 1000:.1f}"])
    header = (
        "GPU scopes",
        "PSS MB, each process",
        "together (want < 50)",
        "RSS MB",
        "CPU s/hour, idle",
        "of a core (want < 0.3 %)",
        "CPU ms per reload",
    )
    return table(f"gpuguard, default settings, idle for {seconds:.0f} s, cgroup {node.mode}", header, rows)


def _reloads(guard: Gpuguard) -> float:
    seen = guard.total("gpuguard_reloads_total")
    pids = family(guard.daemon.pid)
    before = usages(pids)
    for number in range(_RELOADS):
        guard.node.run(["systemctl", "daemon-reload"])
        guard.await_reloads(seen + number + 1)
    return (usages(pids).cpu - before.cpu) / _RELOADS


def family(pid: int) -> list[int]:
    """Return a process and those that it has started, the oldest first."""
    return [pid, *(other for child in children(pid) for other in family(child))]


def usages(pids: Sequence[int]) -> Usage:
    """Return what several processes together have used so far."""
    found = [usage(pid) for pid in pids]
    return Usage(sum(one.cpu for one in found), sum(one.rss for one in found), sum(one.pss for one in found))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}"


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
