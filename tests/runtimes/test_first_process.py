"""First processes, in this machine's own /proc and in a made one."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.errors import RuntimeFileError
from gpuguard.runtimes.first_process import FirstProcesses, seconds_since_epoch
from tests.runtimes.tree import Tree


def test_a_real_process() -> None:
    """It started a moment ago, is in its own group, and is gone after its end, also before it is waited for."""
    processes = FirstProcesses(Path("/proc"))
    began = time.time()
    with subprocess.Popen(["sleep", "100"]) as process:
        ticks = processes.started(process.pid)
        assert ticks is not None
        assert began - 0.1 < seconds_since_epoch(ticks) < time.time() + 0.1
        group = Path(f"/proc/{process.pid}/cgroup").read_text(encoding="ascii").splitlines()[0].split(":", 2)[2]
        assert processes.is_in(process.pid, group)
        assert not processes.is_in(process.pid, "/system.slice/other.scope")
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert processes.started(process.pid) is None
    assert processes.started(process.pid) is None
    assert not processes.is_in(process.pid, group)


def test_the_time_of_a_suspend_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it does where the kernel says when a process started (proc_pid_stat(5)), unlike in CLOCK_MONOTONIC."""
    clocks = {time.CLOCK_BOOTTIME: 5000.0, time.CLOCK_MONOTONIC: 1000.0}
    monkeypatch.setattr(time, "clock_gettime", clocks.__getitem__)
    monkeypatch.setattr(time, "time", lambda: 100_000.0)
    assert seconds_since_epoch(4000 * os.sysconf("SC_CLK_TCK")) == 99_000.0


def test_a_name_that_looks_like_more(tree: Tree) -> None:
    """The process' name may hold anything: its last parenthesis counts."""
    tree.process(7, ["/a"], 1234)
    assert FirstProcesses(tree.path("/proc")).started(7) == 1234
    tree.write("/proc/7/stat", "7 (x) S 1 2 3) Z 1\n")
    with pytest.raises(RuntimeFileError, match="not what the kernel writes"):
        FirstProcesses(tree.path("/proc")).started(7)


@pytest.mark.parametrize(
    ("group", "inside"),
    [
        ("/a/b", True),
        ("/a/b/container", True),
        ("/a/bc", False),
        ("/a", False),
        ("/a/b:c", False),
        ("", False),
        ("/x\f1:x:/a/b", False),
        ("/x\r1:x:/a/b", False),
    ],
)
def test_the_group_and_those_below(tree: Tree, group: str, inside: bool) -> None:
    """A process in the group or below it is in it, whichever hierarchy says so; a name that begins alike is not it."""
    tree.process(7, ["/", group], 1)
    assert FirstProcesses(tree.path("/proc")).is_in(7, "/a/b") is inside


@pytest.mark.parametrize(
    ("line", "elsewhere"),
    [
        ("8:devices:/a/b", None),
        ("8:devices:/a/b/container", None),
        ("8:devices:/a", "/a"),
        ("8:devices:/a/bc", "/a/bc"),
        ("8:cpu,devices:/a:x.slice", "/a:x.slice"),
        ("8:cpu,cpuacct:/", None),
    ],
)
def test_whose_device_rules_count(tree: Tree, line: str, elsewhere: Optional[str]) -> None:
    """Only the device hierarchy of cgroup v1 says it, whatever the others do."""
    tree.write("/proc/7/cgroup", f"9:memory:/\n{line}\n0::/a/b\n")
    assert FirstProcesses(tree.path("/proc")).gated_elsewhere(7, "/a/b") == elsewhere
