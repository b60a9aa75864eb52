"""A container's start, however slow, is not disturbed: it ends with all devices, and only then they are declared."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from functools import partial

import pytest

from gpuguard.kernel.devices_v1 import SHIELD
from tests.e2e import gate, hooks
from tests.e2e.bundles import TRIES, Bundle, Bundles, bundles
from tests.e2e.cold_start import ASKED
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import RUN, Gpuguard
from tests.e2e.reloads import reloading
from tests.lab.containers import Engine
from tests.lab.devices import GPU0, Device
from tests.lab.node import Node
from tests.lab.poll import until

SETTLE = 1.0  # seconds, the default
MANY = 50
DEFAULTS = {"settle": "1s", "poll_interval": "5s"}
GPUS = tuple(Device(f"/dev/nvidia{minor}", 195, minor) for minor in range(30))


@pytest.fixture
def made(node: Node) -> Iterator[Bundles]:
    """Return the way to containers of runc's own."""
    with bundles(node) as found:
        yield found


def declared(node: Node, scope: str) -> bool:
    """Whether systemd was told of a GPU of a scope."""
    return any("195:0 " in entry for entry in gate.declared(node, scope))


def start_all(many: Sequence[Bundle]) -> None:
    """Start them at once, and assert that each of them starts: few of them have to be started again."""
    failed = list(many)
    for _ in range(TRIES):
        starts = [(bundle, bundle.begin()) for bundle in failed]
        failed = [bundle for bundle, start in starts if start.wait(120)]
        assert [bundle.said for bundle in failed if not bundle.again()] == []
        assert len(failed) <= len(many) / 10
    assert failed == []


def assert_not_early(guard: Gpuguard, scopes: Sequence[str]) -> None:
    """Assert that each of them was declared, and no sooner than its hook had done its work."""
    ends = hooks.ends(guard.node)
    for scope in scopes:
        until(partial(guard.events, "declared", scope=scope), 20, "the declaration to be told")
        times = [
            datetime.fromisoformat(event["timestamp"]).timestamp() for event in guard.events("declared", scope=scope)
        ]
        assert times, scope
        assert min(times) > ends[scope], scope


def assert_whole(guard: Gpuguard, scope: str, devices: Sequence[Device]) -> None:
    """Wait until a container is protected, and assert that it has its devices, and has them after a reload too."""
    guard.await_state(scope, "protected")
    cgroup = guard.node.cgroup(scope)
    assert [device.rule for device in devices if not gate.has(cgroup, device)] == []
    guard.node.run(["systemctl", "daemon-reload"])
    assert [device.rule for device in devices if not gate.has(cgroup, device)] == []
    until(lambda: not (cgroup / SHIELD).exists(), 20, "the shield to go")


@pytest.mark.invariant(2)
def test_a_slow_hook(engine: Engine, launch: Launch) -> None:
    """A hook that takes three times the settle time from one device to the next: none is lost, nothing comes early."""
    hooks.install(engine.node, 3 * SETTLE)
    guard = launch(guard=DEFAULTS).start()
    begin = time.monotonic()
    container = engine.run("slow-hook", args=hooks.options(engine))
    assert time.monotonic() - begin >= 3 * SETTLE * len(hooks.DEVICES)
    assert_whole(guard, container.scope, hooks.DEVICES)
    assert_not_early(guard, [container.scope])


@pytest.mark.invariant(2)
def test_a_rule_every_tenth_of_a_second(made: Bundles, launch: Launch) -> None:
    """Thirty rules in three seconds are all learnt and declared, none of them before the last."""
    guard = launch(guard=DEFAULTS).start()
    bundle = made.make(0.1, GPUS)
    start = bundle.begin()
    assert start.wait(60) == 0, bundle.said
    assert_whole(guard, bundle.scope, GPUS)
    assert_not_early(guard, [bundle.scope])


@pytest.mark.invariant(2)
def test_created_and_not_started(made: Bundles, launch: Launch) -> None:
    """A container that was created and not started is still starting, however long that takes, and whatever reloads."""
    guard = launch(guard=DEFAULTS).start()
    bundle = made.make()
    bundle.make("create")
    guard.await_state(bundle.scope, "settling")
    time.sleep(3 * SETTLE)
    made.node.run(["systemctl", "daemon-reload"])
    guard.await_reloads(1)
    time.sleep(3 * SETTLE)
    guard.await_state(bundle.scope, "settling")
    assert not declared(bundle.node, bundle.scope)
    bundle.runc("start")
    assert_whole(guard, bundle.scope, hooks.DEVICES)


def test_exec_without_end(engine: Engine, launch: Launch) -> None:
    """A container that somebody executes a program in again and again settles as any other."""
    hooks.install(engine.node)
    guard = launch(guard=DEFAULTS).start()
    container = engine.run("probed", args=hooks.options(engine))
    over = threading.Event()

    def probe() -> None:
        while not over.is_set():
            container.exec(["/bin/true"], check=True)

    threads = [threading.Thread(target=probe) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        guard.await_state(container.scope, "protected", 60)
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.invariant(2)
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("nvidia_toolkit", "driver")
def test_fifty_at_once_under_reloads(made: Bundles, launch: Launch) -> None:
    """Fifty containers that start at once, while systemd reloads five times a second, all start and have everything.

    On cgroup v1 they ask for a GPU as NVIDIA's do: what systemd takes some microseconds after a hook has written it
    nobody has seen, and the specification alone tells. On cgroup v2 NVIDIA's hook copies systemd's program for each
    device: a reload between two of them leaves a copy that denies the first for good, guard or no guard. So there is
    one.
    """
    v1 = made.node.mode == "v1"
    devices = ASKED if v1 else (GPU0,)
    guard = launch(guard=DEFAULTS).start()
    many = [made.make(visible="0") if v1 else made.make(devices=devices) for _ in range(MANY)]
    with reloading(made.node, 0.2):
        start_all(many)
        for bundle in many:
            guard.await_state(bundle.scope, "protected", 60)

    def short() -> dict[str, list[str]]:
        lacking = {one.id: [dev.rule for dev in devices if not gate.has(one.cgroup, dev)] for one in many}
        return {identity: rules for identity, rules in lacking.items() if rules}

    until(lambda: not short(), 20, f"everything to be everywhere: {short()}")
    assert_not_early(guard, [bundle.scope for bundle in many])
    until(lambda: not any((one.cgroup / SHIELD).exists() for one in many), 20, "the shields to go")


def test_short_containers(made: Bundles, launch: Launch) -> None:
    """Containers that end while they settle run to their end and leave nothing behind."""
    guard = launch(guard={**DEFAULTS, "settle": "50ms"}).start()
    with reloading(made.node, 0.2):
        for length in range(20):
            bundle = made.make(argv=("/bin/sleep", str(length / 100)))
            bundle.make("run")
    until(lambda: not guard.samples("gpuguard_container_info"), 20, "the end of all containers to be seen")
    until(lambda: not list(made.node.path(f"{RUN}/ledger").iterdir()), 20, "all containers to be forgotten")
    units = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "docker-*.scope"]
    until(lambda: made.node.run(units).stdout == "", 20, "systemd to have forgotten all scopes")
    hierarchy = made.node.path("/sys/fs/cgroup/devices" if made.node.mode == "v1" else "/sys/fs/cgroup")
    until(lambda: not list((hierarchy / "system.slice").glob("docker-*")), 20, "the end of all control groups")
