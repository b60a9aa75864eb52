"""A process as it was found in /proc, and what part it plays: systemd, a container runtime, or somebody else. Pure."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.model.scope_name import ContainerScope

# The number of systemd, or of what runs in its place.
INIT = 1

_UNITS = (".service", ".scope")
# What the kernel appends to the path of an executable that was replaced or sealed (d_path).
_DELETED = " (deleted)"
# Runtimes run from a sealed copy of themselves, which no container can overwrite: /memfd:crun_cloned:/proc/self/exe
# (crun and runc, cloned_binary.c).
_MEMFD = "/memfd:"
_CLONED = "_cloned:"

# Programs that give containers their devices, and take them away again.
_RUNTIMES = frozenset({
    *("runc", "crun", "youki", "docker-runc", "nvidia-container-runtime", "nvidia-container-runtime-hook"),
    *("nvidia-container-cli", "nvidia-container-toolkit", "nvidia-cdi-hook", "libnvidia-container"),
    *("dockerd", "containerd", "podman", "conmon", "crio", "kubelet", "nerdctl", "buildkitd", "isulad", "k3s"),
})  # fmt: skip
_SHIM = "containerd-shim"
# What Docker's builder and others call theirs: buildkit-runc, isulad-shim.
_OTHERS = ("-runc", "-crun", "-shim")
# Groups that runtimes without systemd's help make (their cgroupfs driver).
_CONTAINER_GROUPS = frozenset({"docker", "kubepods", "kubepods.slice", "libpod_parent", "lxc", "machine.slice"})
_PAYLOADS = ("lxc.payload", "libpod-payload-")
# Scopes of the host's own programs that stand among those of the containers: conmon, and the runtime below it.
_MONITORS = ("libpod-conmon-", "crio-conmon-")


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
        path = self.exe.removesuffix(_DELETED)
        if path.startswith(_MEMFD) and _CLONED in path:
            return path[len(_MEMFD) :].partition(_CLONED)[0] or self.name
        return PurePosixPath(path).name or self.name

    @property
    def unit(self) -> Optional[str]:
        """The unit of the host's systemd that it runs in, None for none. What a unit has made below it is none."""
        for part in self.control_group.split("/"):
            if part and not part.endswith(".slice"):
                return part if part.endswith(_UNITS) else None
        return None

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
        """Who it is. Names alone make nobody systemd, a runtime or a host's program."""
        if self.pid == INIT:
            return Role.SYSTEMD
        if self.contained:
            return Role.CONTAINER
        if not self.exe or not self.native:
            return Role.UNKNOWN
        # nvidia-container-cli.real (the GPU operator's), nvidia-container-runtime.cdi, runc.amd64
        program = self.program.partition(".")[0]
        known = program in _RUNTIMES or program.startswith(_SHIM) or program.endswith(_OTHERS)
        return Role.RUNTIME if known else Role.HOST

    @property
    def contained(self) -> bool:
        """Whether it runs in a container, as far as its control group tells."""
        if self.container is not None:
            return True
        if self.unit is not None and self.unit.startswith(_MONITORS):
            return False
        parts = self.control_group.split("/")
        return not _CONTAINER_GROUPS.isdisjoint(parts) or any(part.startswith(_PAYLOADS) for part in parts)
