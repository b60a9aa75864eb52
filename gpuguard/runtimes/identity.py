"""Who a container is for its users: what its runtime has written down of names."""

from __future__ import annotations

from typing import Optional

from gpuguard.errors import GpuguardError
from gpuguard.model.runtime_record import Bundle, Identity
from gpuguard.model.scope_name import NSPAWN, ContainerScope
from gpuguard.runtimes.docker import docker_identity
from gpuguard.runtimes.podman import podman_identity
from gpuguard.runtimes.trusted import TrustedFiles

# Annotations for the names of container, namespace and pod: containerd's CRI plugin (pkg/cri/annotations), CRI-O (the
# kubelet's labels), nerdctl (pkg/labels). Of each runtime only its own: CRI-O has a pod's own labels among them.
_ANNOTATIONS = {
    "containerd": (
        "io.kubernetes.cri.container-name",
        "io.kubernetes.cri.sandbox-namespace",
        "io.kubernetes.cri.sandbox-name",
    ),
    "cri-o": ("io.kubernetes.container.name", "io.kubernetes.pod.namespace", "io.kubernetes.pod.name"),
    "nerdctl": ("nerdctl/name", "", ""),
}


def find_identity(files: TrustedFiles, container: ContainerScope, bundle: Optional[Bundle]) -> Identity:
    """Return the names of a container. What stood in the way of them is in the identity's `doubt`."""
    spec = bundle.spec if bundle is not None else None
    try:
        if container.runtime == "docker":
            return docker_identity(files, container.id, spec)
        if container.runtime == "podman":
            return podman_identity(files, container.id, bundle)
    except GpuguardError as error:
        return Identity(doubt=str(error))
    if container.runtime == NSPAWN:
        return Identity(container.id)
    if spec is None or container.runtime not in _ANNOTATIONS:
        return Identity()
    name, namespace, pod = (spec.annotations.get(key) for key in _ANNOTATIONS[container.runtime])
    return Identity(name, namespace, pod)
