"""How NVIDIA's container toolkit is configured: which requests for devices it honours."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Toolkit:
    """config.toml of nvidia-container-runtime, as far as it decides on devices. The defaults are the toolkit's own.

    `path` is the file, `changed` when it was last changed, in seconds since the epoch (0.0: there is none).
    """

    path: str = ""
    changed: float = 0.0
    envvar_when_unprivileged: bool = True
    volume_mounts: bool = False
    no_cgroups: bool = False
    swarm_resource: str = ""
    disabled: bool = False
