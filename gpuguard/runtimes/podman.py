"""The list of containers that containers/storage keeps, for the name that Podman gave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from gpuguard.errors import RuntimeFileAbsentError
from gpuguard.model.json_text import parse_json, said_of
from gpuguard.model.runtime_record import Bundle, Identity
from gpuguard.runtimes.trusted import TrustedFiles

_DEFAULT = "/var/lib/containers/storage/overlay-containers"


def podman_identity(files: TrustedFiles, container_id: str, bundle: Optional[Bundle]) -> Identity:
    """Return the container's first name. Raises RuntimeFileError or SpecError."""
    for directory in _lists(container_id, bundle):
        path = f"{directory}/containers.json"
        try:
            text = files.read(path).text
        except RuntimeFileAbsentError:
            continue
        with said_of(path):
            name = _name(text, container_id)
        if name is not None:
            return Identity(name)
    return Identity()


def _name(text: str, container_id: str) -> Optional[str]:
    for container in parse_json(text).items():
        if container.member("id").text() == container_id:
            return next(iter(container.member("names").texts()), None)
    return None


def _lists(container_id: str, bundle: Optional[Bundle]) -> Iterator[str]:
    # STORAGE/DRIVER-containers/ID/userdata/config.json
    ending = f"/{container_id}/userdata/config.json"
    if bundle is not None and bundle.path.endswith(ending):
        yield bundle.path[: -len(ending)]
    yield _DEFAULT
