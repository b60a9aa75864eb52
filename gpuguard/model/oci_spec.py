"""What a container's OCI specification (config.json of its bundle) says, as far as it matters here.

https://github.com/opencontainers/runtime-spec/blob/main/config-linux.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import Rule


@dataclass(frozen=True)
class Mount:
    """One of the mounts that the runtime makes in the container. `source` is "" for one that has none."""

    destination: str
    source: str = ""
    type: str = ""


@dataclass(frozen=True)
class Hook:
    """A program that the runtime starts on the host for this container, at the stage "prestart" or another."""

    stage: str
    path: str
    args: tuple[str, ...] = ()


@dataclass(frozen=True)
class OciSpec:
    """The parts of one specification.

    `allowed` is what linux.resources.devices comes down to, with denies applied; `unrestricted`: it allows everything.
    `nodes` are linux.devices: the path in the container, and the number. `env` is process.env. `capabilities` is the
    bounding set, None where the process has no `capabilities` at all. `namespaces` are the types that the runtime makes
    anew ("mount", "user", ...), without those that it joins by a path.
    """

    cgroups_path: str = ""
    allowed: frozenset[Rule] = frozenset()
    unrestricted: bool = False
    nodes: Mapping[str, DeviceNumber] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    hooks: tuple[Hook, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    capabilities: Optional[frozenset[str]] = None
    namespaces: frozenset[str] = frozenset()
