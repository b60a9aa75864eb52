"""Which control groups keep a process from a real-time class (Documentation/scheduler/sched-rt-group.rst).

With RT_GROUP_SCHED each group of the cpu controller (cgroup v1) has a budget, 0 unless somebody gave it one; a group's
comes out of that of the group above.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Optional

from gpuguard.model.membership import memberships

_CONTROLLER = "cpu"
_BUDGET = "cpu.rt_runtime_us"


def empty_budgets(proc: Path, cgroup: Path, pid: int) -> tuple[str, ...]:
    """Return the files that hold no budget for a process, the outermost first; none where the kernel shares out none.

    `cgroup` is where all hierarchies are mounted, normally /sys/fs/cgroup. What cannot be read is left out.
    """
    membership = _membership(proc / str(pid) / "cgroup")
    if membership is None:
        return ()
    controllers, group = membership
    mount = next((cgroup / name for name in (controllers, _CONTROLLER) if (cgroup / name).is_dir()), None)
    parts = PurePosixPath(group).parts[1:]
    if mount is None or ".." in parts:  # outside of the cgroup namespace that is seen here
        return ()
    # Also the root, which in a cgroup namespace is some group below the real one.
    files = [mount.joinpath(*parts[:end], _BUDGET) for end in range(len(parts) + 1)]
    return tuple(str(file) for file in files if _text(file) == "0")


def _membership(file: Path) -> Optional[tuple[str, str]]:
    """Return the names of the cpu hierarchy's controllers, and the process's group there."""
    for controllers, group in memberships(_text(file) or ""):
        if _CONTROLLER in controllers:
            return ",".join(controllers), group
    return None


def _text(file: Path) -> Optional[str]:
    try:
        return file.read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return None
