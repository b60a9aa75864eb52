"""A node is examined, with and without a daemon."""

from __future__ import annotations

import os

import pytest

from gpuguard import __version__
from gpuguard.errors import ConfigError
from gpuguard.guard.doctor import examine
from gpuguard.model.doctor import Gravity
from gpuguard.model.state import State
from tests.guard.conftest import Station
from tests.guard.post import settings
from tests.guard.test_once import desk
from tests.lab.sim.node import SimNode

GPU0 = "c 195:0 rw"


async def test_beside_a_daemon(sim: SimNode, station: Station) -> None:
    """The daemon's version and its settings count, and a bad file then stops nobody."""
    scope = sim.scope(hook_rules=[GPU0])
    post = await station(sim, {"escalate": {"command": ["/bin/true"]}})
    await post.becomes(scope, State.PROTECTED)
    async with desk(sim, post):
        found = await examine(settings(sim), ConfigError("gpuguard.toml: not TOML"))
    assert found.node is not None
    assert (found.node.daemon, found.node.trouble) == ("running", "gpuguard.toml: not TOML")
    assert (found.versions.daemon, found.versions.systemd) == (__version__, 252)
    assert [one.state for one in found.node.containers] == [State.PROTECTED]
    assert found.without_effect == (("[escalate] command", "in this version of gpuguard"),)
    assert {source.name for source in found.sources or () if source.up} >= {"signals", "units"}
    assert found.gravity is Gravity.ADVICE


async def test_without_a_daemon(sim: SimNode) -> None:
    """What only a daemon tells is not known."""
    sim.scope(hook_rules=[GPU0])
    found = await examine(settings(sim), None)
    assert found.node is not None
    assert (found.node.daemon, found.sources, found.standing, found.versions.daemon) == ("stopped", None, None, None)
    assert [one.state for one in found.node.containers] == [State.AT_RISK]
    assert found.versions.kernel == os.uname().release


async def test_a_bad_file_without_a_daemon(sim: SimNode) -> None:
    """The node is looked at with what remains of the file, and the fault is told."""
    sim.scope(hook_rules=[GPU0])
    found = await examine(settings(sim), ConfigError("gpuguard.toml: not TOML"))
    assert (found.fault, found.gravity) == ("gpuguard.toml: not TOML", Gravity.BROKEN)
    assert found.node is not None
    assert len(found.node.containers) == 1


async def test_links_in_dev_char(sim: SimNode) -> None:
    """Each guarded node that the host has is looked for in /dev/char."""
    if os.geteuid() != 0:
        pytest.skip("making device nodes takes root")
    found = await examine(settings(sim), None)
    assert found.links is not None
    assert "/dev/nvidia0" in found.links.nodes
    assert found.links.missing == found.links.nodes
    sim.path("/dev/char").mkdir()
    sim.path("/dev/char/195:0").symlink_to("../nvidia0")
    sim.path("/dev/char/195:255").symlink_to("../nvidia0")  # another device's
    found = await examine(settings(sim), None)
    assert found.links is not None
    assert set(found.links.nodes) - set(found.links.missing) == {"/dev/nvidia0"}


@pytest.mark.invariant(4)
async def test_what_cannot_be_read_is_not_known(sim: SimNode) -> None:
    """Without /proc/devices nobody can tell which nodes are guarded, nor look at any container."""
    sim.path("/proc/devices").unlink()
    found = await examine(settings(sim), None)
    assert (found.links, found.node, found.without_effect) == (None, None, ())
    assert "cannot read" in (found.trouble or "")


async def test_the_daemon_s_group_without_a_budget(sim: SimNode, station: Station) -> None:
    """The groups that keep the daemon's process from a real-time class are those of the pid that it tells."""
    post = await station(sim)
    group = sim.path("/sys/fs/cgroup/cpu/gpuguard.slice")
    group.mkdir(parents=True)
    (group / "cpu.rt_runtime_us").write_text("0\n")
    sim.path(f"/proc/{os.getpid()}").mkdir()
    sim.path(f"/proc/{os.getpid()}/cgroup").write_text("1:cpu:/gpuguard.slice\n")
    assert (await examine(settings(sim), None)).budgets == ()
    async with desk(sim, post):
        assert (await examine(settings(sim), None)).budgets == (str(group / "cpu.rt_runtime_us"),)
