"""Reloads on a node with thousands of units and hundreds of GPU scopes: who is whole again, how soon, at what cost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from tests.bench import guards
from tests.bench.crowd import Crowd
from tests.bench.footprint import Usage, family, usages
from tests.bench.progress import tell
from tests.bench.table import table
from tests.e2e.gpuguard import Gpuguard
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.realtime import realtime

# As a container's GPU and its control device, but without a spelling for systemd: lost at each reload.
_RULES = (guards.FIRST, "c *:255 rw")
_WATCHED = 16  # scopes at a time
_UNIT = "[Unit]\nDescription=Storm {0}\n[Service]\nType=oneshot\nExecStart=/bin/true\n"
_NICE = -10  # as the service has it
_PATIENCE = 120.0  # seconds


@dataclass
class _Storm:
    """What came of it.

    Times in ms, but `lengths`, in µs: the outages of the scopes that were looked at; and `round` and `longest`, in ns:
    of the looks at them.
    """

    idle: float
    before: Usage
    after: Usage
    seconds: float
    lengths: list[float] = field(default_factory=list)
    looks: int = 0
    reload: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    round: list[float] = field(default_factory=list)
    longest: list[float] = field(default_factory=list)
    told: dict[str, float] = field(default_factory=dict)


def measure(node: Node, units: int, count: int, reloads: int, seconds: float) -> str:
    """Return the tables: `reloads` with that many units loaded and `count` scopes, in either scheduling class."""
    loaded = _load(node, units)
    found = {}
    for name in ("normal", "real time"):
        with ExitStack() as stack:
            if name == "real time":
                stack.enter_context(realtime(node))
            found[name] = _storm(node, count, reloads, seconds, name)
    title = f"{loaded} loaded units, {count} GPU scopes, {reloads} reloads without a pause, cgroup v1"
    seen = (
        "class",
        "outages seen",
        "median µs",
        "90 % below",
        "99 % below",
        "longest",
        "99 % of all",
        "a look each",
        "longest look",
    )
    rows = [[name, *_outages(one)] for name, one in found.items()]
    outages = table(f"{title}: outages of {_WATCHED} scopes at a time by turns, in µs", seen, rows)
    took = (
        "class",
        "reload takes, ms",
        "and all whole after",
        "losses told",
        "writes told",
        "overflows",
        "log lines",
    )
    rows = [[name, *_times(one), *(f"{told:,.0f}" for told in one.told.values())] for name, one in found.items()]
    times = table(f"Medians, longest; {count * reloads:,} losses there were", took, rows)
    cost = ("class", "CPU idle", "in the storm", "s per reload", "PSS MB before", "after", "RSS MB before", "after")
    rows = [[name, *_cost(one, reloads)] for name, one in found.items()]
    return f"{outages}\n{times}\n{table('All processes of gpuguard together', cost, rows)}"


def _load(node: Node, units: int) -> int:
    """Have systemd load units until there are so many, and return how many there are."""
    directory = node.path("/etc/systemd/system")
    wanted = max(0, units - _loaded(node))
    names = [f"storm-{number}.service" for number in range(wanted)]
    for name in names:
        (directory / name).write_text(_UNIT.format(name), encoding="ascii")
    # A unit that another one names is loaded, and stays so.
    lines = "".join(f"After={name}\n" for name in names)
    (directory / "storm.target").write_text(f"[Unit]\nDescription=Storm\n{lines}", encoding="ascii")
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", "storm.target"])
    return _loaded(node)


def _loaded(node: Node) -> int:
    listed = node.run(["systemctl", "list-units", "--all", "--no-legend", "--plain"]).stdout.splitlines()
    return sum(line.split()[1] == "loaded" for line in listed)


def _storm(node: Node, count: int, reloads: int, seconds: float, name: str) -> _Storm:
    calm, told = {"poll_interval": "5s", "settle": "1s"}, {"level": "info"}
    tell(f"storm, {name}: {count} scopes")
    with (
        Crowd(node, count, rules=_RULES) as crowd,
        Gpuguard(node, guard=calm, backoff=guards.TIRELESS, log=told) as guard,
    ):
        guard.start()
        os.setpriority(os.PRIO_PROCESS, guard.daemon.pid, _NICE)
        until(lambda: guard.total("gpuguard_containers", state="at-risk") == count, _PATIENCE, "all to be known")
        guard.await_rest()
        pids = family(guard.daemon.pid)
        before = usages(pids)
        time.sleep(seconds)
        idle = (usages(pids).cpu - before.cpu) / seconds
        lists = [cgroup / "devices.list" for cgroup in crowd.cgroups]
        start = usages(pids)
        storm = _Storm(idle, start, start, 0.0)
        begun, known = time.monotonic(), _told(guard)
        with _sampler(lists) as sampler, _opened(lists) as descriptors:
            for turn in range(reloads):
                tell(f"storm, {name}: reload {turn + 1} of {reloads}")
                watched = [(turn + step * count // _WATCHED) % count for step in range(min(_WATCHED, count))]
                _reload(node, sampler, sorted(set(watched)), descriptors, storm)
        guard.await_rest()
        storm.seconds, storm.after = time.monotonic() - begun, usages(pids)
        storm.told = {key: value - known[key] for key, value in _told(guard).items()}
        if family(guard.daemon.pid) != pids:
            raise LabError(f"gpuguard's processes were {pids} and are {family(guard.daemon.pid)}")
    return storm


def _reload(
    node: Node, sampler: subprocess.Popen[bytes], watched: Sequence[int], descriptors: Sequence[int], storm: _Storm
) -> None:
    assert sampler.stdin is not None
    assert sampler.stdout is not None
    sampler.stdin.write(json.dumps(watched).encode() + b"\n")
    time.sleep(0.1)
    begun = time.monotonic()
    node.run(["systemctl", "daemon-reload"])
    ended = time.monotonic()
    until(lambda: all(_whole(list_) for list_ in descriptors), _PATIENCE, "all scopes to be whole")
    storm.reload.append((ended - begun) * 1000)
    storm.whole.append((time.monotonic() - ended) * 1000)
    time.sleep(0.1)
    sampler.stdin.write(b"\n")
    seen = json.loads(sampler.stdout.readline())
    storm.looks += len(watched)
    lengths: dict[int, float] = {}
    for number, start, end in seen["gaps"]:
        lengths[number] = lengths.get(number, 0.0) + (end - start) / 1000
    storm.lengths += lengths.values()
    storm.round.append(seen["usual"])
    storm.longest.append(seen["longest"])


def _whole(list_: int) -> bool:
    lines = os.pread(list_, 1 << 14, 0).decode("ascii").splitlines()
    return all(rule in lines for rule in _RULES)


def _told(guard: Gpuguard) -> dict[str, float]:
    """Return what gpuguard itself says it saw."""
    return {
        "losses": guard.total("gpuguard_outage_seconds_count"),
        "writes": guard.total("gpuguard_device_writes_total"),
        "overflows": float(guard.daemon.output().count('"kind": "events_lost"')),
        "lines": float(guard.daemon.output().count("\n")),
    }


@contextmanager
def _opened(lists: Sequence[Path]) -> Iterator[list[int]]:
    with ExitStack() as stack:
        descriptors = []
        for path in lists:
            descriptors.append(os.open(path, os.O_RDONLY))
            stack.callback(os.close, descriptors[-1])
        yield descriptors


@contextmanager
def _sampler(lists: Sequence[Path]) -> Iterator[subprocess.Popen[bytes]]:
    """Start the sampler, on another processor than the one where the node's systemd is where there are two."""
    script = Path(__file__).with_name("sampler.py")
    argv = [sys.executable, "-I", str(script), str(max(os.sched_getaffinity(0))), _RULES[0], *map(str, lists)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise LabError("the sampler does not start")
        try:
            yield process
        finally:
            process.kill()


def _outages(storm: _Storm) -> list[str]:
    """Return how many were seen, figures of these, and the hundredth of all, if those not seen had no length."""
    cells = [f"{len(storm.lengths)} of {storm.looks}"]
    if len(storm.lengths) > 1:
        cuts = _hundredths(storm.lengths)
        unseen = [0.0] * (storm.looks - len(storm.lengths))
        figures = (
            median(storm.lengths),
            cuts[89],
            cuts[98],
            max(storm.lengths),
            _hundredths(storm.lengths + unseen)[98],
        )
        cells += [f"{figure:,.0f}" for figure in figures]
    cells += [""] * (6 - len(cells))
    return [*cells, f"{median(storm.round) / 1000:,.0f}", f"{max(storm.longest) / 1000:,.0f}"]


def _hundredths(lengths: list[float]) -> list[float]:
    return quantiles(lengths, n=100, method="inclusive")


def _times(storm: _Storm) -> list[str]:
    return [f"{median(times):,.0f}, {max(times):,.0f}" for times in (storm.reload, storm.whole)]


def _cost(storm: _Storm, reloads: int) -> list[str]:
    ran = storm.after.cpu - storm.before.cpu
    sizes = [f"{size / 1e6:.1f}" for size in (storm.before.pss, storm.after.pss, storm.before.rss, storm.after.rss)]
    return [f"{storm.idle:.2%}", f"{ran / storm.seconds:.0%}", f"{ran / reloads:.2f}", *sizes]
