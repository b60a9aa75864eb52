"""A process as it was found in /proc, and what part it plays: systemd, a container runtime, or somebody else. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.model.scope_name import ContainerScope

_UNITS = (".service", ".scope")
# What the kernel appends to the path of an executable that was replaced or sealed (d_path).
_DELETED = " (deleted)"

# Programs that give containers their devices, and take them away again.
_RUNTIMES = frozenset({
    *("runc", "crun", "youki", "docker-runc", "nvidia-container-runtime", "nvidia-container-runtime-hook"),
    *("nvidia-container-cli", "nvidia-container-toolkit", "nvidia-cdi-hook", "libnvidia-container"),
    *("dockerd", "containerd", "podman", "conmon", "crio", "kubelet", "nerdctl", "buildkitd"),
})  # fmt: skip
_SHIM = "containerd-shim"
# Groups that runtimes without systemd's help make (their cgroupfs driver).
_CONTAINER_GROUPS = frozenset(
    {"docker", "kubepods", "kubepods.slice", "libpod_parent", "lxc", "lxc.payload", "machine.slice"}
)


class Role(enum.Enum):
    """Who a process is to gpuguard. HOST: an identified program of the host itself that is none of the others."""

    SYSTEMD = "systemd"
    RUNTIME = "runtime"
    HOST = "host"
    CONTAINER = "container"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Process:
    """One process at one moment.

    `name` is the kernel's (comm, at most 15 bytes), which a process may choose; `exe` is the path of its executable, ""
    where that cannot be told; `started` is in seconds since the epoch. `native`: it is in the pid and user namespaces
    that gpuguard is in, those of the host.
    """

    pid: int
    name: str
    exe: str = ""
    command: tuple[str, ...] = ()
    control_group: str = ""
    started: Optional[float] = None
    parent: int = 0
    native: bool = False

    @property
    def program(self) -> str:
        """The program's name: that of its executable, else the kernel's."""
        return PurePosixPath(self.exe.removesuffix(_DELETED) if self.exe else self.name).name or self.name

    @property
    def unit(self) -> Optional[str]:
        """The systemd unit that it runs in, None for none."""
        names = [part for part in self.control_group.split("/") if part.endswith(_UNITS)]
        return names[-1] if names else None

    @property
    def container(self) -> Optional[ContainerScope]:
        """The container that it runs in, None for none that systemd knows."""
        for part in self.control_group.split("/"):
            found = ContainerScope.parse(part)
            if found is not None:
                return found
        return None

    @property
    def role(self) -> Role:
        """Who it is. Names alone make nobody systemd or a host's program."""
        if self.pid == 1:
            return Role.SYSTEMD
        if self.contained:
            return Role.CONTAINER
        if self.program in _RUNTIMES or self.program.startswith(_SHIM):
            return Role.RUNTIME
        return Role.HOST if self.exe and self.native else Role.UNKNOWN

    @property
    def contained(self) -> bool:
        """Whether it runs in a container, as far as its control group tells."""
        return self.container is not None or not _CONTAINER_GROUPS.isdisjoint(self.control_group.split("/"))
