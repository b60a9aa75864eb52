"""The permanent shield on cgroup v1: nothing is ever lost, and it goes when it should."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from gpuguard.kernel.devices_v1 import SHIELD
from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import SETTLE, Gpuguard
from tests.e2e.witness import Witness
from tests.lab import hook
from tests.lab.containers import Engine
from tests.lab.devices import CTL, GPU0
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import Scope

pytestmark = pytest.mark.cgroup("v1")

UNSPELT = "c *:77 rw"  # systemd has no words for it
RELOADS = 20
LIVES = 20
ON = {"shield": True}


def of(cgroup: Path) -> Path:
    """Return where a scope's shield is."""
    return cgroup / SHIELD


def shielded(cgroup: Path) -> Path:
    """Wait until a scope is shielded, and return where its shield is."""
    until(of(cgroup).is_dir, 20, "the shield")
    return of(cgroup)


def gone(cgroup: Path) -> None:
    """Wait until the shield of a running scope has gone."""
    until(lambda: not of(cgroup).exists(), 20, "the end of the shield")
    assert cgroup.is_dir()


@pytest.fixture
def guard(launch: Launch) -> Gpuguard:
    """Return a gpuguard that shields, at work."""
    return launch(guard=ON).start()


@pytest.mark.invariant(2)
@pytest.mark.invariant(8)
def test_no_open_ever_fails(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """20 reloads, and as many property changes and a reexec, take nothing; a rule without a spelling stays, too."""
    scope = gpu_scope()
    (scope.cgroup / "devices.allow").write_text(UNSPELT)
    guard = launch(guard=ON).start()  # not before: what comes late is not given
    made = shielded(scope.cgroup).stat()
    guard.await_state(scope.name, "at-risk")
    until(lambda: guard.total("gpuguard_repairs_total", method="declare", result="ok"), 20, "the declaration")
    guard.await_rounds()
    before, deeds = gate.rules(scope.cgroup), guard.deeds()
    assert UNSPELT in before
    with Witness([scope.cgroup]) as witness, prober.loop(scope.cgroup, GPU0) as loop:
        for number in range(RELOADS):
            node.run(["systemctl", "daemon-reload"])
            node.run(["systemctl", "set-property", "--runtime", scope.name, f"CPUShares={1000 + number}"])
        node.run(["systemctl", "daemon-reexec"])
        guard.await_rounds()
        report = loop.stop()
        assert witness.strangers(node.init) == []
    assert (report.denied, report.gaps, report.odd) == (0, (), {})
    assert report.opens > RELOADS
    assert gate.rules(scope.cgroup) == before
    assert guard.deeds() == deeds
    assert of(scope.cgroup).stat().st_ino == made.st_ino
    assert not guard.events("lost", "repaired")


@pytest.mark.invariant(2)
def test_the_first_loss_after_it_was_shielded_does_not_come(
    node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober
) -> None:
    """Where nothing may be declared before a loss the shield alone is enough, and the commands say so."""
    scope = gpu_scope()
    guard = launch(guard={**ON, "declare": False}).start()
    shielded(scope.cgroup)
    with prober.loop(scope.cgroup, GPU0) as loop:
        for _ in range(RELOADS):
            node.run(["systemctl", "daemon-reload"])
        report = loop.stop()
    assert (report.denied, report.odd) == (0, {})
    assert guard.total("gpuguard_repairs_total") == 0
    container = guard.status()[scope.name]
    assert container["state"] == "at-risk"
    assert container["reason"].endswith("; the shield keeps it")
    explained = json.loads(guard.run("explain", "--json", scope.name).stdout)
    assert explained["shield"] is True
    assert explained["reload"] == "Nothing is taken away."
    assert "the shield is there" in guard.run("explain", scope.name).stdout


def test_what_somebody_takes_by_itself_comes_back(gpu_scope: MakeScope, guard: Gpuguard, prober: Prober) -> None:
    """A single rule can still be denied under the shield, and is given back as ever."""
    scope = gpu_scope()
    shielded(scope.cgroup)
    gate.take_away(scope.node, scope.name, GPU0)
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
    until(lambda: guard.events("repaired", scope=scope.name), 20, "the repair to be told")
    assert of(scope.cgroup).is_dir()


def test_engines_work_as_ever(engine: Engine, guard: Gpuguard, prober: Prober) -> None:
    """Update, exec, pause, restart, stop and rm do under the shield what they do without, and leave nothing behind."""
    container = engine.run("trainer", [GPU0, CTL])
    hook.allow(container.cgroup, GPU0)
    first = shielded(container.cgroup).stat().st_ino
    node = engine.node
    container.update_cpu_shares(512)
    node.run(["systemctl", "daemon-reload"])
    assert prober.open(container.cgroup, GPU0).allowed
    assert container.exec(["/bin/true"], check=True).returncode == 0
    for verb in ("pause", "unpause"):
        engine.command(verb, container.name)
    engine.command("restart", "--time=0", container.name)
    cgroup = node.cgroup(container.scope)
    assert shielded(cgroup).stat().st_ino != first
    guard.await_state(container.scope, "protected")
    engine.command("stop", "--time=0", container.name)
    until(lambda: not cgroup.exists(), 20, "the end of the control group")
    engine.command("start", container.name)
    cgroup = node.cgroup(container.scope)
    shielded(cgroup)
    container.stop()
    until(lambda: not cgroup.exists(), 20, "the end of the control group")
    until(lambda: not node.path(f"/run/systemd/transient/{container.scope}.d").exists(), 20, "the end of its drop-ins")
    assert "could not be found" in node.run(["systemctl", "status", container.scope], check=False).stderr
    until(lambda: guard.events("gone", scope=container.scope), 20, "the end to be told")


def test_systemd_stops_the_scope(node: Node, gpu_scope: MakeScope, guard: Gpuguard) -> None:
    """`systemctl stop` of a shielded scope ends it and leaves no directory; what it leaves is not a container."""
    scope = gpu_scope()
    shielded(scope.cgroup)
    assert list(guard.status()) == [scope.name]
    node.run(["systemctl", "stop", scope.name])
    until(lambda: not scope.cgroup.exists(), 20, "the end of the control group")


def test_short_lives_leave_nothing(gpu_scope: MakeScope, guard: Gpuguard) -> None:
    """Containers that end at about the time when they would be shielded end as ever."""
    for _ in range(LIVES):
        scope = gpu_scope()
        time.sleep(random.uniform(SETTLE, SETTLE + 0.3))  # noqa: S311  # not for secrets
        scope.stop()  # waits until the control group is gone
    guard.await_rounds()
    assert not guard.events("trouble", "fault")


@pytest.mark.invariant(7)
def test_a_stop_removes_it(node: Node, gpu_scope: MakeScope, guard: Gpuguard) -> None:
    """After a stop no shield is left, every rule is there, and what was declared survives a reload."""
    scopes = [gpu_scope() for _ in range(5)]
    for scope in scopes:
        shielded(scope.cgroup)
        guard.await_state(scope.name, "protected")
    before = [gate.rules(scope.cgroup) for scope in scopes]
    assert guard.daemon.stop(timeout=20.0) == 0
    for scope in scopes:
        assert not of(scope.cgroup).exists()
    assert [gate.rules(scope.cgroup) for scope in scopes] == before
    node.run(["systemctl", "daemon-reload"])
    assert [gate.rules(scope.cgroup) for scope in scopes] == before


def test_sighup_switches_it(gpu_scope: MakeScope, launch: Launch) -> None:
    """A SIGHUP raises shields or removes them, as the file says; one that changes something else leaves them."""
    scope = gpu_scope()
    guard = launch().start()
    guard.await_state(scope.name, "protected")
    until(lambda: not of(scope.cgroup).exists(), 20, "the end of the declaration")

    guard.configure(guard=ON)
    guard.daemon.signal(signal.SIGHUP)
    made = shielded(scope.cgroup).stat()

    guard.configure(guard={**ON, "declare": False})
    guard.daemon.signal(signal.SIGHUP)
    until(lambda: len(guard.events("config_reloaded")) == 2, 20, "the settings")
    guard.await_rounds()
    assert of(scope.cgroup).stat().st_ino == made.st_ino

    guard.configure()
    guard.daemon.signal(signal.SIGHUP)
    gone(scope.cgroup)
    guard.await_rounds()
    assert [len(guard.events(kind)) for kind in ("shielded", "unshielded")] == [1, 1]

    guard.configure(guard=ON)
    guard.daemon.signal(signal.SIGHUP)
    shielded(scope.cgroup)
    guard.configure(guard={**ON, "mode": "observe"})
    guard.daemon.signal(signal.SIGHUP)
    gone(scope.cgroup)


@pytest.mark.invariant(7)
def test_a_crash_leaves_it(node: Node, gpu_scope: MakeScope, guard: Gpuguard, prober: Prober) -> None:
    """A kill -9 leaves it, harmless; the next start keeps it as it is, and one without the setting removes it."""
    scope = gpu_scope()
    made = shielded(scope.cgroup).stat()
    guard.await_state(scope.name, "protected")
    guard.daemon.kill()
    with prober.loop(scope.cgroup, GPU0) as loop:
        node.run(["systemctl", "daemon-reload"])
        guard.start()
        guard.await_state(scope.name, "protected")
        guard.await_rounds()
        report = loop.stop()
    assert (report.denied, report.odd) == (0, {})
    assert of(scope.cgroup).stat().st_ino == made.st_ino
    guard.daemon.kill()
    guard.configure()
    guard.start()
    gone(scope.cgroup)


def test_a_release_removes_it(gpu_scope: MakeScope, guard: Gpuguard) -> None:
    """Who releases a device has the shield go, so that what is not declared goes with the next rewrite."""
    scope = gpu_scope()
    shielded(scope.cgroup)
    done = guard.run("release", scope.name, GPU0.path)
    assert done.returncode == 0, done.stderr
    gone(scope.cgroup)
    guard.await_rounds()
    assert not of(scope.cgroup).exists()


def test_a_revocation_is_not_held_off_and_removes_it(
    node: Node, gpu_scope: MakeScope, guard: Gpuguard, prober: Prober
) -> None:
    """What an administrator takes away by hand is gone under the shield, too, and the shield goes with it."""
    scope = gpu_scope()
    shielded(scope.cgroup)
    guard.await_state(scope.name, "protected")
    guard.await_rounds()
    guard.await_watched(scope.cgroup)
    deny = f"/sys/fs/cgroup/devices/system.slice/{scope.name}/devices.deny"
    with gate.writing(node, f"{GPU0.rule} rw", deny):
        until(lambda: guard.events("revoked", scope=scope.name), 20, "the revocation")
    gone(scope.cgroup)
    guard.await_rounds()
    assert prober.open(scope.cgroup, GPU0).denied
    assert not of(scope.cgroup).exists()


def test_one_that_somebody_uses_hinders_nothing(gpu_scope: MakeScope, guard: Gpuguard, prober: Prober) -> None:
    """What a container puts into the shield keeps it from being removed: the daemon stops, the container ends."""
    used, other = gpu_scope(), gpu_scope()
    squatter = shielded(used.cgroup) / "squatter"
    shielded(other.cgroup)
    squatter.mkdir()
    assert prober.open(used.cgroup, GPU0).allowed
    assert guard.daemon.stop() == 0
    assert of(used.cgroup).is_dir()
    gone(other.cgroup)
    used.stop()


def test_it_is_not_for_services(node: Node, launch: Launch) -> None:
    """A service can run again in the same group, which would inherit what the shield kept: it gets none."""
    unit = "job.service"
    allowed = "--property=DeviceAllow=/dev/null rwm"
    node.run(["systemd-run", f"--unit={unit}", "--property=DevicePolicy=strict", allowed, "sleep", "infinity"])
    try:
        hook.allow(node.cgroup(unit), GPU0)
        guard = launch(guard=ON, scopes={"units": [unit]}).start()
        until(lambda: guard.events("at_risk", scope=unit), 20, "the warning")
        guard.await_rounds()
        assert not of(node.cgroup(unit)).exists()
    finally:
        node.run(["systemctl", "stop", unit])


def test_below_groups_of_its_own(gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """A scope with control groups of its own is not stripped anyway, and gets no shield."""
    scope: Scope = gpu_scope()
    (scope.cgroup / "payload").mkdir()
    guard = launch(guard=ON).start()
    guard.await_state(scope.name, "protected")
    guard.await_rounds()
    assert not of(scope.cgroup).exists()
    scope.node.run(["systemctl", "daemon-reload"])
    assert prober.open(scope.cgroup, GPU0).allowed
