"""No repair ever gives a container another one's GPU."""

from __future__ import annotations

from tests.e2e.conftest import Launch
from tests.lab.containers import Container, Engine
from tests.lab.devices import GPU0, GPU1, Device
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober

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


def take_away(node: Node, container: Container, device: Device, how: int) -> None:
    """Take the container's device away in one of several ways."""
    if how % 2:
        node.path(f"/run/systemd/transient/{container.scope}.d/50-DeviceAllow.conf").unlink()
        node.run(["systemctl", "daemon-reload"])
    else:
        (container.cgroup / "devices.deny").write_text(f"{device.rule} rwm")


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
    assert guard.total("gpuguard_repairs_total", method="write", result="ok") >= len(containers) * (ROUNDS + 1) // 2
    status = guard.status()
    assert [device["device"] for device in status[one.scope]["devices"]] == [GPU0.rule]
    assert [device["device"] for device in status[two.scope]["devices"]] == [GPU1.rule]
