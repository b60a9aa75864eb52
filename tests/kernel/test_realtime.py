"""Which groups have no real-time budget: on made-up trees, and on the machine's own cpu hierarchy."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuguard.kernel.realtime import empty_budgets

CPU = Path("/sys/fs/cgroup/cpu")
SHARE = "1000"
ASK = "import os; os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))"
# Waits for its place in a group, then tries.
CHILD = f"import sys; sys.stdin.readline(); {ASK}"


def tree(root: Path, line: str, **budgets: str) -> tuple[Path, Path]:
    """Make a process 7 with this line in its cgroup file, and budgets of / ("top"), /a ("a") and /a/b ("b")."""
    proc, cgroup = root / "proc", root / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7/cgroup").write_text(f"9:name=systemd:/a/b\n{line}\n0::/\n")
    for name, group in (("top", "."), ("a", "a"), ("b", "a/b")):
        (cgroup / "cpu,cpuacct" / group).mkdir(parents=True, exist_ok=True)
        if name in budgets:
            (cgroup / "cpu,cpuacct" / group / "cpu.rt_runtime_us").write_text(budgets[name] + "\n")
    return proc, cgroup


@pytest.mark.parametrize(
    ("line", "budgets", "found"),
    [
        ("1:cpu,cpuacct:/a/b", {"a": "0", "b": "0"}, ["a", "a/b"]),
        ("1:cpu,cpuacct:/a/b", {"a": "5", "b": "0"}, ["a/b"]),
        ("1:cpu,cpuacct:/a", {"a": "0", "b": "0"}, ["a"]),
        ("1:cpu,cpuacct:/", {"a": "0"}, []),
        ("1:cpu,cpuacct:/", {"top": "0", "a": "0"}, ["."]),
        ("1:cpu,cpuacct:/a", {"top": "950000", "a": "0"}, ["a"]),
        ("1:cpu,cpuacct:/a/b", {}, []),
        ("1:cpu,cpuacct:/../a", {"a": "0"}, []),
        ("1:cpuset:/a", {"a": "0"}, []),
        ("1:memory:/a", {"a": "0"}, []),
    ],
)
def test_a_made_up_tree(tmp_path: Path, line: str, budgets: dict[str, str], found: list[str]) -> None:
    """Each group above the process that has none; nothing for other hierarchies, and where there is no such file."""
    proc, cgroup = tree(tmp_path, line, **budgets)
    mount = cgroup / "cpu,cpuacct"
    assert empty_budgets(proc, cgroup, 7) == tuple(str(mount / group / "cpu.rt_runtime_us") for group in found)


def test_a_hierarchy_under_its_short_name(tmp_path: Path) -> None:
    """Where only "cpu" is mounted, that is it; where none is, nothing is known."""
    proc, cgroup = tree(tmp_path, "1:cpu,cpuacct:/a", a="0")
    (cgroup / "cpu,cpuacct").rename(cgroup / "cpu")
    assert empty_budgets(proc, cgroup, 7) == (str(cgroup / "cpu/a/cpu.rt_runtime_us"),)
    (cgroup / "cpu").rename(cgroup / "elsewhere")
    assert empty_budgets(proc, cgroup, 7) == ()


def test_no_such_process(tmp_path: Path) -> None:
    """A process that has ended keeps nobody."""
    assert empty_budgets(tmp_path, tmp_path, 7) == ()


@pytest.fixture
def groups() -> Iterator[list[Path]]:
    """Return two nested groups of the machine's cpu hierarchy, without a budget as the kernel makes them."""
    if os.geteuid() != 0 or not (CPU / "cpu.rt_runtime_us").exists():
        pytest.skip("needs root, cgroup v1 and a kernel with RT_GROUP_SCHED")
    top = CPU / f"gpuguard-test-{uuid.uuid4().hex[:8]}"
    made = [top, top / "below"]
    for group in made:
        group.mkdir()
    yield made
    for group in reversed(made):
        group.rmdir()


def _try_in(group: Path) -> tuple[int, tuple[str, ...]]:
    """Ask for a real-time class in a group; return the exit code, and the files that are told to be in the way."""
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        (group / "cgroup.procs").write_text(str(child.pid))
        told = empty_budgets(Path("/proc"), CPU.parent, child.pid)
        _, complaint = child.communicate(b"\n", timeout=30)
    assert child.returncode == 0 or os.strerror(errno.EPERM).encode() in complaint
    return child.returncode, told


def test_the_kernel_refuses_until_each_has_a_budget(groups: list[Path]) -> None:
    """What is told to be in the way is, and once nothing is, the kernel gives the class."""
    files = [group / "cpu.rt_runtime_us" for group in groups]
    assert _try_in(groups[-1]) == (1, tuple(map(str, files)))
    files[0].write_text(SHARE)
    assert _try_in(groups[-1]) == (1, (str(files[1]),))
    files[1].write_text(SHARE)
    assert _try_in(groups[-1]) == (0, ())
