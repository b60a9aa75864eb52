"""Putting the guard together."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguard.errors import CgroupUnreadableError, LedgerError
from gpuguard.kernel.devices_v2 import DevicesV2
from gpuguard.model.state import State
from tests.guard.conftest import Station
from tests.guard.post import Post
from tests.lab.sim.node import SimNode


def broken(sim: SimNode, tmp_path: Path, **paths: str) -> Post:
    """Return a post whose settings have some other paths."""
    return Post(sim, {"paths": {**sim.config_paths(), "run": str(tmp_path / "run"), **paths}})


async def test_a_node_on_cgroup_v2(sim: SimNode, tmp_path: Path) -> None:
    """A node that gates devices on cgroup v2 is read by its programs, and nothing of it is written."""
    (tmp_path / "cgroup.controllers").touch()
    post = broken(sim, tmp_path, cgroup=str(tmp_path))
    post.build()
    assert isinstance(post.guard.parts.devices, DevicesV2)
    assert not post.guard.parts.devices.writable
    await post.stop()


async def test_a_node_without_cgroups(sim: SimNode, tmp_path: Path) -> None:
    """A place where no hierarchy is mounted is told with the setting."""
    with pytest.raises(CgroupUnreadableError, match=r"set \[paths\] cgroup"):
        broken(sim, tmp_path, cgroup=str(tmp_path)).build()


async def test_a_node_without_proc(sim: SimNode, tmp_path: Path) -> None:
    """A node whose drivers cannot be read is not guarded on a guess."""
    with pytest.raises(CgroupUnreadableError, match="devices: cannot read"):
        broken(sim, tmp_path, proc=str(tmp_path)).build()


async def test_a_ledger_that_is_not_to_be_trusted(sim: SimNode, tmp_path: Path) -> None:
    """A ledger that others may write ends the start."""
    (tmp_path / "run" / "ledger").mkdir(parents=True)
    (tmp_path / "run" / "ledger").chmod(0o777)
    with pytest.raises(LedgerError):
        broken(sim, tmp_path).build()


async def test_settings_reach_the_parts(sim: SimNode, tmp_path: Path) -> None:
    """What is configured of the guard's policy and of the scopes is what its parts have."""
    post = Post(
        sim,
        {
            "guard": {"settle": "3s", "declare": False},
            "backoff": {"max_repairs": 7, "window": "2m", "pause": "9s"},
            "scopes": {"units": ["ollama.service"], "exclude": ["docker-*.scope"]},
            "paths": {**sim.config_paths(), "run": str(tmp_path)},
        },
        enforce=False,
    )
    post.build()
    policy = post.guard.policy
    assert (policy.enforce, policy.protect, policy.settle) == (False, False, 3.0)
    assert (policy.max_repairs, policy.window, policy.pause) == (7, 120.0, 9.0)
    assert post.guard.parts.units.wanted("ollama.service")
    assert not post.guard.parts.units.wanted(f"docker-{'a' * 64}.scope")
    await post.stop()


async def test_a_further_unit_is_written_back_and_not_declared(sim: SimNode, station: Station) -> None:
    """A service that the configuration names is guarded by direct writes: nothing is declared for it."""
    sim.control("add-service", name="ollama.service")
    post = await station(sim, {"scopes": {"units": ["ollama.service"]}})
    group = "/system.slice/ollama.service"
    scopes = post.guard.scopes
    await post.until(lambda: group in scopes and scopes[group].state is not None, "the service was not found")
    assert scopes[group].state is State.UNRESTRICTED
    assert [call["member"] for call in sim.calls() if call["member"] == "SetUnitProperties"] == []
