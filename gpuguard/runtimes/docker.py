"""Docker's own file of a container, for its name. It lies below dockerd's data root, which may be anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Optional

from gpuguard.errors import RuntimeFileAbsentError
from gpuguard.model.json_text import parse_json, said_of
from gpuguard.model.oci_spec import OciSpec
from gpuguard.model.runtime_record import Identity
from gpuguard.runtimes.trusted import TrustedFiles

_SETTINGS = "/etc/docker/daemon.json"
# Its default, and that of its snap.
_DATA_ROOTS = ("/var/lib/docker", "/var/snap/docker/common/var-lib-docker")
# dockerd mounts these files of its own into a container (daemon/container_operations_unix.go).
_OWN_FILE = re.compile(r"(/.+)/containers/([0-9a-f]{64})/(?:hosts|hostname|resolv\.conf)")
# As cri-dockerd labels the containers of pods.
_NAME, _POD, _NAMESPACE = "io.kubernetes.container.name", "io.kubernetes.pod.name", "io.kubernetes.pod.namespace"


def docker_identity(files: TrustedFiles, container_id: str, spec: Optional[OciSpec]) -> Identity:
    """Return the container's name; for one of a pod the pod's labels. Raises RuntimeFileError or SpecError."""
    for data_root in _data_roots(files, container_id, spec):
        path = f"{data_root}/containers/{container_id}/config.v2.json"
        try:
            text = files.read(path).text
        except RuntimeFileAbsentError:
            continue
        with said_of(path):
            return _identity(text)
    return Identity()


def _identity(text: str) -> Identity:
    written = parse_json(text)
    labels = written.member("Config").member("Labels")
    if not labels.member(_POD).absent:
        return Identity(labels.member(_NAME).text(), labels.member(_NAMESPACE).text(), labels.member(_POD).text())
    return Identity(written.member("Name").text().lstrip("/"))


def _data_roots(files: TrustedFiles, container_id: str, spec: Optional[OciSpec]) -> Iterator[str]:
    # One is enough: who starts a container may ask for any number of mounts.
    matches = (_OWN_FILE.fullmatch(mount.source) for mount in (spec.mounts if spec is not None else ()))
    yield from islice((match[1] for match in matches if match is not None and match[2] == container_id), 1)
    try:
        settings = files.read(_SETTINGS).text
    except RuntimeFileAbsentError:
        pass
    else:
        with said_of(_SETTINGS):
            data_root = parse_json(settings).member("data-root").text()
        if data_root:
            yield data_root.rstrip("/")
    yield from _DATA_ROOTS
