"""Which hierarchy gates devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguard.errors import CgroupUnreadableError
from gpuguard.kernel.mode import CgroupMode, detect


def make(root: Path, *files: str) -> Path:
    """Make files below a directory."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def test_v1_where_the_devices_controller_is_mounted(tmp_path: Path) -> None:
    """The v1 devices controller gates, also on a hybrid host, which has the unified hierarchy beside it."""
    assert detect(make(tmp_path, "devices/devices.list", "unified/cgroup.controllers")) is CgroupMode.V1


def test_v2_where_only_the_unified_hierarchy_is(tmp_path: Path) -> None:
    """Without the v1 controller the unified hierarchy gates."""
    assert detect(make(tmp_path, "cgroup.controllers")) is CgroupMode.V2


def test_v2_where_the_unified_hierarchy_is_at_the_top(tmp_path: Path) -> None:
    """A v1 devices hierarchy that somebody mounts beside it gates nothing that systemd and the runtimes write."""
    assert detect(make(tmp_path, "devices/devices.list", "cgroup.controllers")) is CgroupMode.V2


@pytest.mark.parametrize("files", [(), ("devices/other",), ("unified/cgroup.controllers",)])
def test_neither(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Where neither is to be seen, the error names the place and what to set."""
    with pytest.raises(CgroupUnreadableError, match=rf"{tmp_path}: neither .* set \[paths\] cgroup"):
        detect(make(tmp_path, *files))


def test_this_machine() -> None:
    """The machine that runs the tests gives an answer too, if it has cgroups at all."""
    root = Path("/sys/fs/cgroup")
    if not any(root.glob("*/cgroup.procs")) and not (root / "cgroup.procs").exists():
        pytest.skip(f"no cgroup hierarchy at {root}")
    assert detect(root) in CgroupMode
