"""Making systemd remember a device takes nothing from the container, not for a moment."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.lab import hook
from tests.lab.containers import Engine
from tests.lab.devices import CTL, FUSE, GPU0, Device
from tests.lab.node import ROOT, Node
from tests.lab.prober import Prober
from tests.lab.scope import Scope

TRIES = 150
DECLARATIONS = 30
TUN = Device("/dev/net/tun", 10, 200)  # which runc allows everybody
KVM = Device("/dev/kvm", 10, 232)
USB = "c 189:* rwm"


def drop_in(node: Node, scope: str) -> list[str]:
    """Return the lines of the drop-in in which systemd keeps a scope's DeviceAllow."""
    path = node.path(f"/run/systemd/transient/{scope}.d/50-DeviceAllow.conf")
    return path.read_text(encoding="utf-8").splitlines()


def declare_under_fire(node: Node, scope: Scope, how: str) -> dict[str, Any]:
    """Declare TRIES times and more while a hook writes; see tests/e2e/declaring.py."""
    program = ["env", "-C", str(ROOT), sys.executable, "-m", "tests.e2e.declaring"]
    done = node.run([*program, f"/system.slice/{scope.name}", str(TRIES), how], timeout=200)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.timeout(300)
@pytest.mark.invariant(2)
def test_what_a_hook_does_meanwhile_survives(node: Node, gpu_scope: MakeScope, prober: Prober) -> None:
    """150 declarations with a hook at work at a random moment: what it did survives each, and no open ever fails."""
    scope = gpu_scope()
    with prober.loop(scope.cgroup, GPU0) as loop:
        result = declare_under_fire(node, scope, "guard")
        report = loop.stop()
    assert (result["lost"], result["errors"]) == (0, [])
    assert result["during"] >= TRIES / 5
    assert report.opens > TRIES
    assert (report.denied, report.gaps, report.odd) == (0, (), {})


@pytest.mark.timeout(300)
def test_without_the_shield_it_would_not(node_v1: Node, gpu_scope: MakeScope) -> None:
    """The same call without the shield loses the hook's rule now and then: the test above would notice."""
    scope = gpu_scope()
    result = declare_under_fire(node_v1, scope, "plain")
    assert result["lost"] > 0


@pytest.mark.invariant(2)
def test_declaring_fails_no_open(node: Node, gpu_scope: MakeScope, prober: Prober, launch: Launch) -> None:
    """While the daemon declares 30 times, since its drop-in is removed each time, no open in the scope fails."""
    guard = launch(backoff={"max_repairs": 1000}).start()
    scope = gpu_scope()
    with prober.loop(scope.cgroup, GPU0) as loop:
        guard.await_state(scope.name, "protected")
        path = node.path(f"/run/systemd/transient/{scope.name}.d/50-DeviceAllow.conf")
        for _ in range(DECLARATIONS):
            path.unlink()
            (repair,) = guard.repair(scope.name).repairs
            assert repair.error is None
            assert "DeviceAllow=/dev/char/195:0 rw" in drop_in(node, scope.name)
        report = loop.stop()
    assert guard.total("gpuguard_repairs_total", method="declare", result="ok") == DECLARATIONS + 1
    assert (report.denied, report.gaps, report.odd) == (0, (), {})
    assert report.opens > DECLARATIONS


@pytest.mark.invariant(2)
def test_other_devices_survive(engine: Engine, prober: Prober, launch: Launch) -> None:
    """What is no GPU, by the engine's options or by a hook, is as open after declaring and a reload as before."""
    container = engine.run("trainer", [FUSE, GPU0, CTL], [f"--device-cgroup-rule={USB}"])
    for device in (TUN, KVM):
        hook.allow(container.cgroup, device, "rwm")
    before = gate.rules(container.cgroup)
    assert {f"{KVM.rule} rwm", USB} <= before

    guard = launch().start()
    guard.await_state(container.scope, "protected")

    assert gate.rules(container.cgroup) == before
    engine.node.run(["systemctl", "daemon-reload"])
    assert gate.rules(container.cgroup) == before
    assert not [device.path for device in (FUSE, TUN, KVM, GPU0) if prober.open(container.cgroup, device).denied]
