"""What `gpuguard run` wants before it starts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuguard.cli.run import lacking_privileges
from gpuguard.config import Settings
from tests.cli.test_main import gpuguard_command
from tests.lab import bpf


def settings(root: Path, mode: str = "enforce") -> Settings:
    """Return settings for a node whose files are below `root`."""
    paths = {"cgroup": str(root / "cgroup"), "run": str(root / "run" / "gpuguard")}
    return Settings.from_mapping({"guard": {"mode": mode}, "paths": paths})


def _hierarchy(root: Path) -> Path:
    """Make a v1 devices hierarchy of plain files."""
    devices = root / "cgroup" / "devices"
    devices.mkdir(parents=True)
    (devices / "devices.list").touch()
    return devices


def test_a_node_that_belongs_to_the_caller_lacks_nothing(tmp_path: Path) -> None:
    """A simulated node needs no root: the paths decide."""
    _hierarchy(tmp_path)
    assert not list(lacking_privileges(settings(tmp_path), observe_only=False))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
@pytest.mark.parametrize(("mode", "observe_only"), [("enforce", True), ("observe", False)])
def test_who_only_observes_need_not_write_rules(tmp_path: Path, mode: str, *, observe_only: bool) -> None:
    """A cgroup tree that cannot be written stops only a guard that would write to it."""
    _hierarchy(tmp_path).chmod(0o500)
    assert not list(lacking_privileges(settings(tmp_path, mode), observe_only=observe_only))
    assert any("given back" in lack for lack in lacking_privileges(settings(tmp_path), observe_only=False))


def test_on_cgroup_v2_it_must_be_able_to_read_programs(tmp_path: Path) -> None:
    """What is no cgroup v2 to bpf(2) cannot be guarded, also by one who only observes."""
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cgroup.controllers").touch()
    for observe_only in (False, True):
        [lack] = lacking_privileges(settings(tmp_path), observe_only=observe_only)
        assert "cannot read its device programs" in lack


def test_on_cgroup_v2_root_alone_is_not_enough(tmp_path: Path) -> None:
    """Where only the capability to open programs is lacking, the daemon does not start to be blind."""
    reason = bpf.why_not()
    if reason is not None:
        pytest.skip(reason)
    with bpf.scratch() as cgroup:
        paths = {"cgroup": str(cgroup), "run": str(tmp_path)}
        assert list(lacking_privileges(Settings.from_mapping({"paths": paths}), observe_only=False)) == []

        def lacking() -> list[str]:
            bpf.drop(bpf.CAP_SYS_ADMIN)
            return list(lacking_privileges(Settings.from_mapping({"paths": paths}), observe_only=False))

        [lack] = bpf.inside(cgroup, lacking)
        assert "needs CAP_SYS_ADMIN" in lack


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_without_privileges_the_exit_code_is_77() -> None:
    """An ordinary user on a real node is told what is lacking."""
    done = gpuguard_command("run")
    assert done.returncode == 77
    assert "run it as root" in done.stderr
