"""Where container runtimes keep what they know of their containers: paths of the host, links resolved.

Seen on disk: Docker 20.10, containerd 1.6, Podman 4.3 with runc 1.1. From their documentation: the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuguard.errors import RuntimeFileAbsentError
from gpuguard.runtimes.trusted import TrustedFiles

# The state directories of containerd: its own, k3s's and RKE2's, k0s's, MicroK8s's, and of the one that dockerd starts.
_CONTAINERD = (
    "/run/containerd",
    "/run/k3s/containerd",
    "/run/k0s/containerd",
    "/var/snap/microk8s/common/run/containerd",
    "/run/docker/containerd/daemon",
)
_TASKS = "io.containerd.runtime.v2.task"
# Below these the shim has runc keep its states, by namespace.
_STATES = "runc"
# dockerd gives each runtime of its configuration a directory: runtime-runc, runtime-nvidia.
_DOCKER = "/run/docker"
_DOCKER_RUNTIME = "runtime-"
_MOBY = "moby"
# runc's and crun's own default, as Podman and CRI-O use them.
_OWN = ("/run/runc", "/run/crun")
# Of containers/storage, which these two share: CRI-O has its bundles in both, Podman in the second.
_STORAGE_RUN = "/run/containers/storage"
_STORAGE = "/var/lib/containers/storage"
_STORAGE_CONTAINERS = "-containers"

_ID = re.compile(r"(?!.*\.\.)[A-Za-z0-9][A-Za-z0-9_.+-]{0,254}")


@dataclass(frozen=True)
class BundlePlace:
    """A directory that may be a bundle, and a file that names the first process."""

    directory: str
    pid_file: str


def usable_id(container_id: str) -> bool:
    """Whether an id that was taken from a control group's name can be a file's name and nothing else."""
    return _ID.fullmatch(container_id) is not None


def state_directories(files: TrustedFiles, container_id: str) -> Iterator[str]:
    """Yield where a low-level runtime may have noted the container's state. Raises RuntimeFileError."""
    for state in _OWN:
        yield f"{state}/{container_id}"
    for runtime in _names(files, _DOCKER):
        if runtime.startswith(_DOCKER_RUNTIME):
            yield f"{_DOCKER}/{runtime}/{_MOBY}/{container_id}"
    for state in _CONTAINERD:
        for namespace in _names(files, f"{state}/{_STATES}"):
            yield f"{state}/{_STATES}/{namespace}/{container_id}"


def bundle_places(files: TrustedFiles, container_id: str) -> Iterator[BundlePlace]:
    """Yield where the container's bundle may lie by itself. Raises RuntimeFileError."""
    for state in _CONTAINERD:
        for namespace in _names(files, f"{state}/{_TASKS}"):
            bundle = f"{state}/{_TASKS}/{namespace}/{container_id}"
            yield BundlePlace(bundle, f"{bundle}/init.pid")
    for driver in _names(files, _STORAGE_RUN):
        if driver.endswith(_STORAGE_CONTAINERS):
            userdata = f"{driver}/{container_id}/userdata"
            for storage in (_STORAGE_RUN, _STORAGE):
                yield BundlePlace(f"{storage}/{userdata}", f"{_STORAGE_RUN}/{userdata}/pidfile")


def _names(files: TrustedFiles, directory: str) -> tuple[str, ...]:
    try:
        return files.names(directory)
    except RuntimeFileAbsentError:
        return ()
