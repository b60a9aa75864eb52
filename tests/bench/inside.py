"""Many containers at once: `python -m tests.bench.inside COUNT PERIOD KNOWN [RULE…]`, run in a node by Crowd.

Starts COUNT scopes of which systemd is told the devices that every container has, with KNOWN=1 also the GPU's. Then
each gets its GPU as a runtime does it: on v2 by a program in the place of systemd's, on v1 by rules written beside
it, which are the RULEs if there are any. In each a process opens the GPU every PERIOD seconds (0: never). Prints the
scopes' names as one line of JSON; then for each line that it reads, what the processes have seen since the one before;
and ends when there is no more to read.
"""

from __future__ import annotations

import asyncio
import errno
import json
import mmap
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gpuguard.model.rule import Rule
from gpuguard.systemd.bus import Bus
from gpuguard.systemd.codec import variant
from gpuguard.systemd.manager import MANAGER, SYSTEMD, SYSTEMD_PATH
from tests.lab import bpf, device_programs, hook
from tests.lab.devices import CTL, GPU0, PLAIN, UVM, Device
from tests.lab.poll import until
from tests.lab.scope import BASICS, random_name

GIVEN = (GPU0, CTL, UVM)

_BUS = "unix:path=/run/dbus/system_bus_socket"
_MOUNT = Path("/sys/fs/cgroup")
_NODE = Path("/run/gpu0")  # the node's /dev is shared with others
_PATIENCE = 60.0  # seconds
# What runc 1.1 lets through on cgroup v2, with the devices that it was asked for.
_RUNTIME = (
    "c *:* m",
    "b *:* m",
    *(f"{device.rule} rwm" for device in PLAIN if device.path != "/dev/kmsg"),
    "c 136:* rwm",
    "c 5:2 rwm",
    *(f"{device.rule} rw" for device in GIVEN),
)
# Opens; denied ones; the latest of those, in ns of the monotonic clock.
_SEEN = struct.Struct("=QQQ")


def _open(seen: mmap.mmap, at: int, period: float) -> None:
    """Open the GPU until killed."""
    opens = denied = last = 0
    while True:
        if not period:
            signal.pause()
        time.sleep(period)
        begun = time.monotonic_ns()
        try:
            os.close(os.open(_NODE, os.O_RDWR | os.O_NONBLOCK | os.O_NOCTTY))
        except OSError as error:
            if error.errno == errno.EPERM:
                denied, last = denied + 1, begun
        opens += 1
        seen[at : at + _SEEN.size] = _SEEN.pack(opens, denied, last)


@contextmanager
def _processes(seen: mmap.mmap, count: int, period: float) -> Iterator[list[int]]:
    pids: list[int] = []
    try:
        for number in range(count):
            pid = os.fork()
            if not pid:
                try:
                    _open(seen, number * _SEEN.size, period)
                finally:
                    os._exit(1)
            pids.append(pid)
        yield pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


async def _start_scopes(pids: list[int], entries: list[list[str]]) -> list[str]:
    bus = Bus(_BUS)
    await bus.connect()
    names = [random_name() for _ in pids]
    for name, pid in zip(names, pids):
        properties = [
            ["PIDs", variant("au", [pid])],
            ["DevicePolicy", variant("s", "strict")],
            ["DeviceAllow", variant("a(ss)", entries)],
            ["CollectMode", variant("s", "inactive-or-failed")],
        ]
        body = [name, "replace", properties, []]
        await bus.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "StartTransientUnit", "ssa(sv)a(sa(sv))", body)
    await bus.close()
    return names


def _runs(cgroup: Path, pid: int) -> bool:
    procs = cgroup / "cgroup.procs"
    return procs.exists() and str(pid) in procs.read_text(encoding="ascii").split()


def _give(unified: bool, cgroup: Path, program: int, rules: Sequence[str]) -> None:
    """Let a container through to its GPU behind systemd's back."""
    if not unified:
        for rule in rules or [f"{device.rule} rw" for device in GIVEN]:
            (cgroup / "devices.allow").write_text(rule, encoding="ascii")
        return
    until(lambda: hook.attached(cgroup), _PATIENCE, f"systemd's program on {cgroup}")
    [systemds] = hook.attached(cgroup)
    with bpf.opened(systemds) as old:
        bpf.replace(cgroup, old, program)


def main() -> None:
    """Start them, answer, and end them."""
    count, period, known = int(sys.argv[1]), float(sys.argv[2]), bool(int(sys.argv[3]))
    rules = sys.argv[4:]
    if not _NODE.exists():
        Device(str(_NODE), GPU0.major, GPU0.minor).make(Path("/"))
    entries = [*BASICS, *(f"/dev/char/{device.major}:{device.minor} rw" for device in GIVEN if known)]
    unified = (_MOUNT / "cgroup.controllers").exists()
    slice_ = _MOUNT / ("" if unified else "devices") / "system.slice"
    seen = mmap.mmap(-1, _SEEN.size * count)
    with _processes(seen, count, period) as pids:
        names = asyncio.run(_start_scopes(pids, [entry.split() for entry in entries]))
        with bpf.program(device_programs.runc(map(Rule.parse, _RUNTIME))) as program:
            for name, pid in zip(names, pids):
                until(lambda: _runs(slice_ / name, pid), _PATIENCE, f"the start of {name}")  # noqa: B023 - called here
                _give(unified, slice_ / name, program.fd, rules)
        print(json.dumps(names), flush=True)
        before = [(0, 0)] * count
        for _ in sys.stdin:
            now = list(_SEEN.iter_unpack(seen[:]))
            since = [(a - c, b - d, last) for (a, b, last), (c, d) in zip(now, before)]
            print(json.dumps(since), flush=True)
            before = [(opens, denied) for opens, denied, _ in now]


if __name__ == "__main__":
    main()
