"""The list of containers that containers/storage keeps, for the name that Podman gave."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from gpuguard.errors import RuntimeFileAbsentError
from gpuguard.model.json_text import parse_json, said_of
from gpuguard.model.runtime_record import Bundle, Identity
from gpuguard.runtimes.trusted import TrustedFiles

_DEFAULT = "/var/lib/containers/storage/overlay-containers"
# The second has those that are removed at their end (--rm, as quadlets have it): seen with Podman 5.4.
_LISTS = ("containers.json", "volatile-containers.json")


def podman_identity(files: TrustedFiles, container_id: str, bundle: Optional[Bundle]) -> Identity:
    """Return the container's first name. Raises RuntimeFileError or SpecError."""
    for path in _lists(container_id, bundle):
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
    directories = [_DEFAULT]
    if bundle is not None and bundle.path.endswith(ending):
        directories.insert(0, bundle.path[: -len(ending)])
    for directory in directories:
        for name in _LISTS:
            yield f"{directory}/{name}"
