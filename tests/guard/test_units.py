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
        (Scopes(units=("machine-*.scope",)), "machine-a.scope", ContainerScope("systemd", "machine-a.scope")),
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
