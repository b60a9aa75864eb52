"""Which units are guarded."""

from __future__ import annotations

from typing import Optional

import pytest

from gpuguard.config import Scopes
from gpuguard.guard.units import Units
from gpuguard.model.scope_name import ContainerScope

ID = "ab" * 32
DOCKER = f"docker-{ID}.scope"


@pytest.mark.parametrize(
    ("settings", "unit", "container"),
    [
        (Scopes(), DOCKER, ContainerScope("docker", ID)),
        (Scopes(), f"libpod-{ID}.scope", ContainerScope("podman", ID)),
        (Scopes(), f"libpod-conmon-{ID}.scope", None),
        (Scopes(), "ollama.service", None),
        (Scopes(units=("ollama.service",)), "ollama.service", ContainerScope("systemd", "ollama.service")),
        (Scopes(units=("machine-*.scope",)), "machine-a.scope", ContainerScope("nspawn", "a")),
        (Scopes(units=("machine-*.scope",)), "Machine-a.scope", None),
        (Scopes(units=("docker-*.scope",)), DOCKER, ContainerScope("docker", ID)),
        (Scopes(exclude=("docker-*.scope",)), DOCKER, None),
        (Scopes(units=(DOCKER,), exclude=("docker-ab*",)), DOCKER, None),
        (Scopes(exclude=("docker-ff*.scope",)), DOCKER, ContainerScope("docker", ID)),
    ],
)
def test_by_name(settings: Scopes, unit: str, container: Optional[ContainerScope]) -> None:
    """Containers are known by their scope's name, other units if they are listed; what is excluded is not guarded."""
    units = Units(settings)
    assert units.container(unit) == container
    assert units.wanted(unit) is (container is not None)


@pytest.mark.parametrize(
    ("settings", "control_group", "unit", "unit_group"),
    [
        (Scopes(), f"/system.slice/{DOCKER}", DOCKER, f"/system.slice/{DOCKER}"),
        (Scopes(), f"/docker/{ID}", ID, None),
        (Scopes(), f"/system.slice/llm.service/libpod-payload-{ID}", "llm.service", "/system.slice/llm.service"),
        (Scopes(units=("llm.service",)), "/system.slice/llm.service", "llm.service", "/system.slice/llm.service"),
        (Scopes(), "/system.slice/llm.service", None, None),
        (Scopes(), "/docker", None, None),
        (Scopes(exclude=("/docker/*",)), f"/docker/{ID}", None, None),
        (Scopes(exclude=(DOCKER,)), f"/system.slice/{DOCKER}", None, None),
        (Scopes(exclude=("llm.service",)), f"/system.slice/llm.service/libpod-payload-{ID}", None, None),
        (Scopes(units=("*.service",)), f"/system.slice/{DOCKER}/libpod-payload-{ID}", None, None),
    ],
)
def test_by_control_group(settings: Scopes, control_group: str, unit: Optional[str], unit_group: Optional[str]) -> None:
    """Containers without a scope are known by where they are; their service can be left out."""
    group = Units(settings).group(control_group)
    assert (group and group.unit, group and group.unit_group) == (unit, unit_group)
