"""Containers that lost their devices before gpuguard's first start are cured from what their runtime wrote of them.

On cgroup v1 nothing else tells what they had. On cgroup v2 the runtime's own program still does: there it is as good as
seen ("ledger"), and nothing need be derived.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Callable

import pytest

from tests.e2e import gate
from tests.e2e.cold_start import ASKED, GIVEN, MARGIN, assert_cured, entitled, explain, lose
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.lab.containerd import Containerd
from tests.lab.containers import Container, Docker, Engine
from tests.lab.devices import GPU0, GPU1, Device
from tests.lab.nvidia import toolkit
from tests.lab.nvidia.driver import Driver, Inventory, uuid
from tests.lab.prober import Prober

pytestmark = pytest.mark.usefixtures("nvidia_toolkit", "driver")

PAUSE = 1.0  # seconds from one device to the next
GPU2 = Device("/dev/nvidia2", 195, 2)


@pytest.fixture(params=["run", "repair"])
def cure(request: pytest.FixtureRequest, launch: Launch) -> Callable[[Container], Gpuguard]:
    """Return each way to have gpuguard look at a container for the first time: the daemon, the command alone."""

    def cure(container: Container) -> Gpuguard:
        guard = launch()
        if request.param == "run":
            guard.start().await_state(container.scope, "protected")
        else:
            done = guard.run("repair")
            assert done.returncode == 0, done.stdout + done.stderr
        return guard

    return cure


@pytest.mark.invariant(1)
def test_devices_of_the_specification(engine: Engine, prober: Prober, cure: Callable[[Container], Gpuguard]) -> None:
    """What --device gave, and this runc has not told systemd of, comes back from the specification, as it was."""
    container = engine.run("specified", GIVEN)
    before = gate.rules(container.cgroup)
    lose(prober, container, GIVEN)
    guard = cure(container)
    assert_cured(guard, prober, container, GIVEN, "spec")
    assert gate.rules(container.cgroup) == before


@pytest.mark.cgroup("v1")
def test_stripped_by_hand(engine: Engine, prober: Prober, launch: Launch) -> None:
    """It does not matter who took it: what the specification says comes back, and the sources are named."""
    container = engine.run("stripped", GIVEN)
    for device in GIVEN:
        gate.take_away(engine.node, container.scope, device)
    assert prober.denied(container.cgroup, GIVEN) == [device.path for device in GIVEN]
    guard = launch().start()
    guard.await_state(container.scope, "protected")
    assert_cured(guard, prober, container, GIVEN, "spec")
    explained = explain(guard, container)
    assert explained["bundle"].endswith("config.json")
    [gpu] = [rule for rule in explained["rules"] if rule["device"] == GPU0.rule]
    assert any(source.startswith("spec: ") for source in gpu["sources"])


@pytest.mark.invariant(1)
@pytest.mark.parametrize("visible", ["0", uuid(0)], ids=["number", "UUID"])
def test_request_that_the_hook_fulfilled(
    engine: Engine, prober: Prober, cure: Callable[[Container], Gpuguard], visible: str
) -> None:
    """What NVIDIA's hook gave on request comes back, with the hook's access: GPU 0 and the control nodes."""
    container = engine.run("requested", args=toolkit.options(engine, visible=visible))
    before = gate.rules(container.cgroup)
    lose(prober, container, ASKED)
    guard = cure(container)
    assert_cured(guard, prober, container, ASKED, "env")
    assert gate.rules(container.cgroup) == before
    assert prober.open(container.cgroup, GPU1).denied


def test_request_of_dockers_own(docker: Docker, prober: Prober, launch: Launch) -> None:
    """So it is with Docker's --gpus, which puts NVIDIA's hook into the specification itself."""
    container = docker.run("gpus", args=["--gpus=device=0"])
    lose(prober, container, ASKED)
    guard = launch().start()
    guard.await_state(container.scope, "protected")
    assert_cured(guard, prober, container, ASKED, "env")


@pytest.mark.parametrize("asked", [False, True], ids=["specification", "request"])
def test_container_of_a_pod(containerd: Containerd, prober: Prober, launch: Launch, asked: bool) -> None:
    """So it is with containerd, as a kubelet uses it."""
    devices = ASKED if asked else GIVEN
    if asked:
        options = [f"--runc-binary={toolkit.RUNTIME}", "--env=NVIDIA_VISIBLE_DEVICES=0"]
        container = containerd.run("pods-own", args=options)
    else:
        container = containerd.run("pods-own", GIVEN)
    lose(prober, container, devices)
    guard = launch().start()
    guard.await_state(container.scope, "protected", container=container.id)
    assert_cured(guard, prober, container, devices, "env" if asked else "spec")


@pytest.mark.invariant(2)
@pytest.mark.parametrize("reload", [False, True], ids=["undisturbed", "reload in the middle"])
def test_hook_at_work_is_not_overtaken(engine: Engine, prober: Prober, launch: Launch, reload: bool) -> None:
    """What is asked for is granted when the start is over, and not while the hook is giving it, one by one.

    What a reload takes from it meanwhile, unseen, comes back then. On cgroup v2 the hook itself copies systemd's
    program that denies: that is past help.
    """
    if reload and engine.node.mode == "v2":
        pytest.skip("the hook makes a copy of systemd's program")
    toolkit.configure(engine.node, {toolkit.PAUSE: str(PAUSE)})
    guard = launch(guard={"poll_interval": "100ms"}).start()
    begin = time.monotonic()
    with ThreadPoolExecutor(1) as other:
        start = other.submit(engine.run, "slow", (), toolkit.options(engine, visible="0"))
        if reload:
            time.sleep(1.5 * PAUSE)
            engine.node.run(["systemctl", "daemon-reload"])
        container = start.result()
    assert time.monotonic() - begin >= PAUSE * len(ASKED)
    if not reload:
        assert guard.total("gpuguard_repairs_total", method="write") == 0
    guard.await_state(container.scope, "protected")
    # A reload may have taken one that nobody had seen yet: that comes back with the request, which is read later.
    assert prober.denied(container.cgroup, ASKED, within=20.0 if reload else 0.0) == []
    guard.await_state(container.scope, "protected")
    assert set(entitled(guard, container)) == {device.rule for device in ASKED}
    assert prober.open(container.cgroup, GPU1).denied


def test_request_for_control_nodes_alone(engine: Engine, prober: Prober, launch: Launch) -> None:
    """Who asks for `none` gets the driver without a GPU, and that back."""
    container = engine.run("control", args=toolkit.options(engine, visible="none"))
    lose(prober, container, ASKED[1:])
    guard = launch().start()
    guard.await_state(container.scope, "protected")
    assert_cured(guard, prober, container, ASKED[1:], "env")


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(1)
def test_request_for_all_of_what_there_was(engine: Engine, prober: Prober, launch: Launch, driver: Driver) -> None:
    """`all` are those that the container got, which its mounts tell: not a GPU that the host got since."""
    container = engine.run("all-of-them", args=toolkit.options(engine, visible="all"))
    lose(prober, container, [GPU0, GPU1, *ASKED[1:]])
    driver.load(Inventory((0, 1, 2)))
    guard = launch().start()
    assert prober.denied(container.cgroup, [GPU0, GPU1], within=20.0) == []
    guard.await_rounds()
    time.sleep(MARGIN)
    assert prober.open(container.cgroup, GPU2).denied
    assert GPU2.rule not in entitled(guard, container)


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(1)
def test_mounts_that_the_hook_did_not_make(engine: Engine, prober: Prober, launch: Launch) -> None:
    """A mount that the user asked for adds nothing to the request: GPU 1 stays closed."""
    wish = f"--volume={GPU1.path}:{GPU1.path}"
    container = engine.run("wishes", args=toolkit.options(engine, wish, visible="0"))
    lose(prober, container, ASKED)
    guard = launch().start()
    guard.await_state(container.scope, "protected")
    assert_cured(guard, prober, container, ASKED, "env")
