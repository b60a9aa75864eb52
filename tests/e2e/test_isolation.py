"""No repair ever gives a container another one's GPU."""

from __future__ import annotations

import pytest

from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.containers import Container, Engine
from tests.lab.devices import GPU0, GPU1, Device
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import random_name

ROUNDS = 5
# What a tenant can arrange for without being given a device: none of it is an entitlement.
MAY_MKNOD = ("--cap-add=MKNOD",)  # Docker's default, not Podman's
WISHES = ("--env=NVIDIA_VISIBLE_DEVICES=all", f"--volume={GPU1.path}:{GPU1.path}")


def opened(container: Container) -> list[str]:
    """Make the nodes of both GPUs in the container, open them there, and return the complaints of the opens."""
    make = "[ -c /made-{0} ] || mknod /made-{0} c 195 {0}; cat /made-{0} 2>&1"
    script = "; ".join(make.format(device.minor) for device in (GPU0, GPU1))
    return [
        line.partition(": ")[2].partition(": ")[2] for line in container.exec(["sh", "-c", script]).stdout.splitlines()
    ]


def entitled(guard: Gpuguard, scope: str) -> list[str]:
    """Return the devices that gpuguard thinks a scope is entitled to."""
    known = guard.status().get(scope, {"devices": []})
    return [device["device"] for device in known["devices"]]


def take_away(node: Node, container: Container, device: Device, how: int) -> None:
    """Take the container's device away in one of several ways."""
    if how % 2:
        drop_in = node.path(f"/run/systemd/transient/{container.scope}.d/50-DeviceAllow.conf")
        until(drop_in.exists, 20, "the declaration")  # which was taken away in the round before the last
        drop_in.unlink()
        node.run(["systemctl", "daemon-reload"])
    else:
        gate.take_away(node, container.scope, device)


@pytest.mark.invariant(1)
def test_each_container_keeps_to_its_own_gpu(engine: Engine, prober: Prober, launch: Launch) -> None:
    """Two containers are repaired over and over: each gets its own GPU back, and never the other one's."""
    one = engine.run("one", [GPU0], MAY_MKNOD + WISHES)
    two = engine.run("two", [GPU1], MAY_MKNOD)
    guard = launch(backoff={"max_repairs": 1000}).start()
    containers = {one: GPU0, two: GPU1}
    answers = {one: ["No such device or address", "Operation not permitted"]}
    answers[two] = answers[one][::-1]
    assert {container: opened(container) for container in containers} == answers

    for number in range(ROUNDS):
        for container, device in containers.items():
            guard.await_state(container.scope, "protected")
            take_away(engine.node, container, device, number)
        for container, device in containers.items():
            until(lambda c=container, d=device: prober.open(c.cgroup, d).allowed, 20, "the repair")  # type: ignore[misc]
        assert {container: opened(container) for container in containers} == answers

    # Those by hand at least: a drop-in that is missed before the reload comes is declared anew, and nothing is lost.
    method = "write" if engine.node.mode == "v1" else "declare"
    least = len(containers) * (ROUNDS + 1) // 2
    until(lambda: guard.total("gpuguard_repairs_total", method=method, result="ok") >= least, 20, "all to be counted")
    assert entitled(guard, one.scope) == [GPU0.rule]
    assert entitled(guard, two.scope) == [GPU1.rule]


@pytest.mark.parametrize("running", [True, False], ids=["daemon runs on", "daemon restarted"])
def test_reused_name_inherits_nothing(node: Node, launch: Launch, prober: Prober, running: bool) -> None:
    """A container under the name of one that has ended gets its own GPU back, and not what that one had."""
    name = random_name()
    first = node.scope(name)
    hook.allow(first.cgroup, GPU0)
    guard = launch().start()
    guard.await_state(name, "protected")
    if not running:
        guard.daemon.kill()
    first.stop()
    second = node.scope(name)
    hook.allow(second.cgroup, GPU1)
    if not running:
        guard.start()
    until(lambda: entitled(guard, name) == [GPU1.rule], 20, "the second container to be known")
    guard.await_state(name, "protected")

    gate.take_away(node, name, GPU1)
    until(lambda: prober.open(second.cgroup, GPU1).allowed, 20, "the repair")
    node.run(["systemctl", "daemon-reload"])
    guard.await_rounds()
    assert prober.open(second.cgroup, GPU1).allowed
    assert prober.open(second.cgroup, GPU0).denied
    second.stop()


@pytest.mark.invariant(1)
@pytest.mark.invariant(2)
def test_late_rule_is_no_entitlement(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """A GPU that somebody allows long after the start is told of, and neither declared nor given back."""
    scope = gpu_scope()
    guard = launch().start()
    guard.await_state(scope.name, "protected")
    hook.allow(scope.cgroup, GPU1)
    until(lambda: guard.events("excess", scope=scope.name), 20, "the excess to be told")
    assert guard.events("excess")[0]["devices"] == [GPU1.path]
    assert prober.open(scope.cgroup, GPU1).allowed

    node.path(f"/run/systemd/transient/{scope.name}.d/50-DeviceAllow.conf").unlink()
    if node.mode == "v1":
        until(lambda: guard.total("gpuguard_repairs_total", method="declare") >= 2, 20, "a declaration")
        assert guard.total("gpuguard_repairs_total", method="declare") == 2
    else:  # where there is no shield, and systemd's program would deny it
        guard.await_state(scope.name, "at-risk")
        guard.await_rounds()
        assert "would take away c 195:1 rw" in guard.status()[scope.name]["reason"]
        assert guard.total("gpuguard_repairs_total", method="declare") == 1
    assert prober.open(scope.cgroup, GPU1).allowed, "nothing is taken away either"
    node.run(["systemctl", "daemon-reload"])
    guard.await_reloads(1)
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "what it was given")
    guard.await_rounds()
    assert prober.open(scope.cgroup, GPU0).allowed
    assert prober.open(scope.cgroup, GPU1).denied
