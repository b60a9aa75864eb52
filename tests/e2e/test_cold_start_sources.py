"""A loss before gpuguard's first start is not cured, and nothing granted, without the source that tells of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional, Union

import pytest

from gpuguard.cli import codes
from tests.e2e import gate
from tests.e2e.cold_start import ASKED, GIVEN, MARGIN, assert_cured, bundle, explain, lose
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook as by_hand
from tests.lab.containers import Container, Engine
from tests.lab.devices import GPU0, GPU1
from tests.lab.nvidia import hook, toolkit
from tests.lab.prober import Prober

pytestmark = pytest.mark.usefixtures("nvidia_toolkit", "driver")

VOLUME = "--volume=/dev/null:/var/run/nvidia-container-devices/0"


@dataclass(frozen=True)
class Lack:
    """A container without any source that tells of a GPU, however much its user wishes for one.

    `hooked`: by the runtime that has the hook. `settings`: of the toolkit. `why`: what is told of it, where there is
    something to tell.
    """

    name: str
    visible: str = "all"
    options: tuple[str, ...] = ()
    hooked: bool = True
    settings: Mapping[str, Union[str, bool]] = field(default_factory=dict)
    why: Optional[str] = None

    def __str__(self) -> str:
        """Return the name, for the test's id."""
        return self.name

    def run(self, engine: Engine) -> Container:
        """Start such a container."""
        toolkit.configure(engine.node, self.settings)
        asked = (f"--env=NVIDIA_VISIBLE_DEVICES={self.visible}",)
        options = toolkit.options(engine, visible=self.visible) if self.hooked else asked
        return engine.run("without-source", args=(*options, *self.options))


LACKS = (
    Lack("void", "void"),
    Lack("no hook: an image's own wish", hooked=False),
    Lack("no hook: a user's mount", "0", (f"--volume={GPU0.path}:{GPU0.path}",), hooked=False),
    Lack("refused", settings={toolkit.ENVVAR: False}, why="privileged containers only"),
    Lack("no cgroups", settings={toolkit.NO_CGROUPS: True}, why="no-cgroups"),
    Lack("mounts that are not accepted", "void", (VOLUME,)),
    Lack("swarm's variable, which is not set", "void", ("--env=DOCKER_RESOURCE_GPU=0",)),
)


def assert_ungranted(guard: Gpuguard, container: Container) -> None:
    """Start the guard; assert that whatever it does leaves a container as it is."""
    before = gate.rules(container.cgroup)
    guard.start()
    guard.await_rounds()
    time.sleep(MARGIN)
    guard.await_rounds()
    assert gate.rules(container.cgroup) == before
    assert guard.total("gpuguard_repairs_total") == 0
    assert guard.status().get(container.scope, {"devices": []})["devices"] == []
    guard.run("repair")
    assert gate.rules(container.cgroup) == before


def assert_told(guard: Gpuguard, container: Container, why: str) -> None:
    """Assert that who asks about a container that has nothing is told the reason."""
    done = guard.run("explain", container.scope)
    assert done.returncode == codes.NOT_FOUND
    assert why in done.stderr


@pytest.mark.invariant(1)
@pytest.mark.invariant(4)
@pytest.mark.parametrize("lack", LACKS, ids=str)
def test_without_a_source(engine: Engine, prober: Prober, launch: Launch, lack: Lack) -> None:
    """A container without a source gets nothing, not even what somebody gave it by hand, and it has lost.

    On cgroup v2 what was given by hand is in a program that cannot be told from the runtime's.
    """
    container = lack.run(engine)
    assert prober.denied(container.cgroup, [GPU0, GPU1]) == [GPU0.path, GPU1.path]
    if engine.node.mode == "v1":
        by_hand.allow(container.cgroup, GPU0)
        lose(prober, container, [GPU0])
    guard = launch()
    assert_ungranted(guard, container)
    assert prober.denied(container.cgroup, [GPU0, GPU1]) == [GPU0.path, GPU1.path]
    if lack.why is not None:
        assert_told(guard, container, lack.why)


def run(engine: Engine, source: str) -> Container:
    """Start a container of which the specification, or the request in it, tells what it was given."""
    if source == "spec":
        return engine.run("with-source", GIVEN)
    return engine.run("with-source", args=toolkit.options(engine, visible="0"))


@contextmanager
def away(directory: Path) -> Iterator[None]:
    """Move a directory away for a while; the files in it do not change by that."""
    elsewhere = directory.with_name("away")
    directory.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(directory)


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(1)
@pytest.mark.parametrize("source", ["spec", "env"])
def test_specification_away(engine: Engine, prober: Prober, launch: Launch, source: str) -> None:
    """Without the specification nothing is granted; when it is there again, the container is cured."""
    container = run(engine, source)
    devices = GIVEN if source == "spec" else ASKED
    lose(prober, container, devices)
    guard = launch()
    with away(bundle(container).parent):
        assert_ungranted(guard, container)
        assert prober.denied(container.cgroup, devices) == [device.path for device in devices]
        guard.daemon.kill()
    guard.start().await_state(container.scope, "protected")
    assert_cured(guard, prober, container, devices, source)


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(1)
def test_specification_of_later(engine: Engine, prober: Prober, launch: Launch) -> None:
    """A specification that was written after the container's start does not say what it was given."""
    container = run(engine, "spec")
    lose(prober, container, GIVEN)
    time.sleep(2.0)
    path = bundle(container)
    path.write_text(path.read_text(encoding="utf-8").replace('"minor":0', '"minor":1'), encoding="utf-8")
    guard = launch()
    assert_ungranted(guard, container)
    assert_told(guard, container, "config.json")


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(1)
@pytest.mark.parametrize("source", ["spec", "env"])
def test_configuration_of_later(engine: Engine, prober: Prober, launch: Launch, source: str) -> None:
    """What the toolkit's configuration said at the start is not known once it was changed: no request is honoured.

    What the runtime itself was told does not depend on it.
    """
    container = run(engine, source)
    lose(prober, container, GIVEN)
    os.utime(container.node.path(hook.CONFIG))
    guard = launch()
    if source == "spec":
        guard.start().await_state(container.scope, "protected")
        assert_cured(guard, prober, container, GIVEN, source)
        return
    assert_ungranted(guard, container)
    why = f"{hook.CONFIG} was changed after the container's start"
    known = guard.status()[container.scope]
    assert known["state"] == "opaque"
    assert why in known["reason"]
    assert why in "; ".join(explain(guard, container)["doubts"])
