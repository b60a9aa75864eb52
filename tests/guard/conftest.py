"""Guards on simulated nodes, and a watch on calls that would block the event loop."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Optional, Protocol

import pytest
from blockbuster import BlockBuster, blockbuster_ctx

from gpuguard.guard import clock, mend
from tests.guard.post import QUICK, Post, Tables
from tests.kernel.groups import Groups, kernel_groups, plain_groups
from tests.lab.sim.node import SimNode

# Where gpuguard blocks the loop on purpose. A thread would cost more than these take, and leave gaps between them.
BLOCKS_ON_PURPOSE = {
    # cgroupfs: the kernel answers from memory, in microseconds.
    "gpuguard/kernel/hierarchy.py": {"_entries", "_roots_alone", "_opened", "_open", "populated"},
    "gpuguard/kernel/devices_v1.py": {"_read_list", "_write", "shield", "unshield", "shielded"},
    "gpuguard/kernel/nested_v1.py": {"names", "opened", "populated", "_below"},
    # procfs and the names of device nodes: the same.
    "gpuguard/kernel/procfs.py": {"_read", "number", "nodes"},
    # cgroupfs and procfs, for a scope that is settling.
    "gpuguard/kernel/start_phase.py": {"starting"},
    # One small file on the tmpfs at /run, when a container comes, settles, loses devices for the first time, or ends.
    "gpuguard/guard/ledger.py": {"open", "load", "save", "forget"},
    # The processes that may have asked systemd, once for each reload and each call, for some milliseconds at most.
    "gpuguard/kernel/processes.py": {"_bytes", "_link", "_youngest_first"},
    # A unit's files, likewise in /run but for an administrator's drop-ins: some 60 look-ups of directories.
    "gpuguard/systemd/unit_files.py": {"texts"},
    "gpuguard/systemd/unit_stamp.py": {"stamp"},
    # The process's own figures, from procfs, once for each scrape.
    "gpuguard/report/metrics.py": {"render"},
    # A command has nothing else to do meanwhile; the daemon takes the lock before its loop begins.
    "gpuguard/guard/lock.py": {"guard_lock"},
    "gpuguard/guard/once.py": {"look"},
    # Before anything is guarded.
    "gpuguard/guard/build.py": {"assemble"},
    # Its socket, once, on the tmpfs at /run.
    "gpuguard/guard/control.py": {"start", "stop"},
}


@pytest.fixture(autouse=True)
def nothing_blocks() -> Iterator[BlockBuster]:
    """Fail a call from gpuguard that blocks the loop, other than those on purpose."""
    with blockbuster_ctx("gpuguard") as detector:
        for function in detector.functions.values():
            for file, names in BLOCKS_ON_PURPOSE.items():
                function.can_block_in(file, names)
        yield detector


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look longer for what was written: the simulated kernel is a process, and gets its turn when it gets it."""
    monkeypatch.setattr(mend, "_LOOKS", (*mend._LOOKS, 0.05, 0.2, 1.0, 5.0))


class Station(Protocol):
    """The way to start a guard on a node."""

    async def __call__(self, node: SimNode, tables: Optional[Tables] = None, *, enforce: bool = True) -> Post:
        """Start one with these tables of settings."""


@pytest.fixture
async def station(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Station]:
    """Return the way to start guards; they are stopped after the test."""
    patient(monkeypatch)
    monkeypatch.setattr(clock, "_QUICK", QUICK)
    async with contextlib.AsyncExitStack() as stack:

        async def start(node: SimNode, tables: Optional[Tables] = None, *, enforce: bool = True) -> Post:
            post = Post(node, tables, enforce=enforce)
            stack.push_async_callback(post.stop)
            return await post.start()

        yield start


@pytest.fixture
def kernel() -> Iterator[Groups]:
    """Return a slice on the kernel's v1 devices hierarchy."""
    with kernel_groups() as groups:
        yield groups


@pytest.fixture
def tree(tmp_path: Path) -> Groups:
    """Return a tree of plain files that looks like the hierarchy; what is written to it has no effect."""
    return plain_groups(tmp_path)
