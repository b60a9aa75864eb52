"""Bundles of containers whose control group is no scope: a module of its own, since a node has one dockerd."""

from __future__ import annotations

import pytest

from gpuguard.model.scope_name import ContainerScope
from tests.lab.containers import Docker, Engine, Podman
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.payloads import Split
from tests.runtimes.asked import ask


@pytest.mark.cgroup("v1")
@pytest.mark.parametrize(
    ("runtime", "kind", "cgroups"),
    [("docker", Docker, "cgroupfs"), ("podman", Podman, "cgroupfs"), ("podman", Split, "systemd")],
)
def test_groups_that_are_no_scopes(node: Node, runtime: str, kind: type[Engine], cgroups: str) -> None:
    """A container in a group that no systemd made is found by its id and that group's path."""
    engine = kind(node, cgroups=cgroups)
    reason = engine.why_not()
    if reason is not None:
        pytest.skip(reason)
    try:
        container = engine.run(f"trainer-{kind.__name__.lower()}", devices=[GPU0])
        said = ask(node, ContainerScope(runtime, container.id), container.group)
    finally:
        engine.clear()
    assert said["pid"] == container.pid
    assert "c 195:0 rwm" in said["allowed"]
