"""The simulated node as a whole: what tests and the demo rely on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
from dbus_next.signature import Variant

from tests.lab.errors import LabError
from tests.lab.poll import until
from tests.lab.process import identify
from tests.lab.sim import layout
from tests.lab.sim.node import ROOT, SimNode

GPU = ["c 195:0 rw", "c 195:255 rw", "c 510:0 rw"]
DECLARED = Variant("a(ss)", [["/dev/char/195:0", "rw"], ["/dev/char/195:255", "rw"], ["/dev/char/510:0", "rw"]])


def test_a_reload_takes_what_a_hook_gave(sim: SimNode) -> None:
    """Rules that systemd was not told of are gone after a daemon-reload."""
    scope = sim.scope(hook_rules=GPU)
    assert not scope.rules().missing(scope.rules().of(*GPU))
    sim.daemon_reload()
    assert scope.rules().missing(scope.rules().of(*GPU)) == frozenset(scope.rules().of(*GPU))


def test_declared_devices_survive(sim: SimNode) -> None:
    """Rules that systemd was told of outlast a daemon-reload, a daemon-reexec and a change of CPUShares."""
    scope = sim.scope()
    sim.set_property(scope.name, "DeviceAllow", DECLARED, visible=True)
    sim.daemon_reload()
    sim.daemon_reexec()
    sim.set_property(scope.name, "CPUShares", Variant("t", 512))
    assert not scope.rules().missing(scope.rules().of(*GPU))


def test_two_rules_in_one_breath_are_two_rules(sim: SimNode) -> None:
    """Rules that reach the FIFO together are told apart, though nothing stands between them."""
    scope = sim.scope()
    with (scope.cgroup / "devices.allow").open("w") as fifo:
        fifo.write("c 195:0 rwc 195:1 rwmc 10:229 rwm")
    sim.control("settle")
    assert not scope.rules().missing(scope.rules().of("c 195:0 rw", "c 195:1 rwm", "c 10:229 rwm"))


def test_a_shield_keeps_the_list(sim: SimNode) -> None:
    """With an empty child directory systemd's deny-all is refused, and its allows still arrive."""
    scope = sim.scope(hook_rules=["c 10:229 rwm"])
    shield = scope.cgroup / "shield"
    shield.mkdir()
    sim.set_property(scope.name, "DeviceAllow", DECLARED)
    shield.rmdir()
    assert not scope.rules().missing(scope.rules().of("c 10:229 rwm", *GPU))
    assert [(write.text, write.error) for write in sim.refused()] == [("a", "Invalid argument")]


def test_it_comes_back_after_the_bus_died(sim: SimNode) -> None:
    """The fake systemd is on the bus again, with its units, when dbus-daemon was restarted."""
    scope = sim.scope()
    sim.stop_bus()
    sim.start_bus()
    [path] = sim.call("GetUnit", "s", scope.name)
    assert path.endswith("_2escope")


def test_a_busy_systemd_answers_late_and_in_order(sim: SimNode) -> None:
    """While systemd is busy the kernel still works, and what was asked of systemd is done afterwards."""
    scope = sim.scope()
    sim.busy(0.2)
    sim.daemon_reload()
    assert [write.writer for write in scope.writes()][-1] == "systemd"


def test_a_name_used_again_is_another_cgroup(sim: SimNode) -> None:
    """A scope that is started under an old name has another inode, and nothing of the old rules."""
    old = sim.scope("docker-x.scope", hook_rules=GPU)
    inode = old.cgroup.stat().st_ino
    old.stop()
    new = sim.scope("docker-x.scope")
    assert new.cgroup.stat().st_ino != inode
    assert not new.rules().covers(next(iter(new.rules().of(*GPU))))


def test_nothing_is_left_of_it() -> None:
    """The files of a node are gone when it has ended."""
    with SimNode.boot() as node:
        node.scope()
        root = node.root
    assert not root.exists()


def test_the_gap_can_be_seen(sim: SimNode) -> None:
    """Between systemd's deny-all and its first allow the list is empty, for as long as was asked for."""
    scope = sim.scope()
    sim.set_gap(3.0)
    reload = Thread(target=sim.daemon_reload)
    reload.start()
    until(lambda: not scope.rules().rules, 10, "an empty list")
    reload.join()
    assert scope.rules().rules


def test_it_does_not_outlive_its_owner() -> None:
    """The node's process, its dbus-daemon and its files vanish when whoever booted it is killed."""
    script = "from tests.lab.sim.node import SimNode; print(SimNode.boot().root, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout
        root = Path(owner.stdout.readline().strip())
        assert root.is_dir()
        bus = identify(int((root / layout.BUS_PID).read_text()))
        assert bus
        owner.kill()
    until(lambda: not root.exists(), 20, f"the end of {root}")
    assert not bus.alive()


def test_a_node_that_was_killed_is_cleared_away() -> None:
    """When the node's process was killed, ending the node still ends its dbus-daemon and removes its files."""
    node = SimNode.boot()
    bus = identify(int((node.root / layout.BUS_PID).read_text()))
    assert bus
    node._process.kill()
    node.down()
    until(lambda: not bus.alive(), 20, "the end of dbus-daemon")
    assert not node.root.exists()


def test_without_dbus_daemon_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without dbus-daemon is told so, with the package's name."""
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(LabError, match=r"dbus-daemon is not installed .*apt-get install dbus"):
        SimNode.boot()
