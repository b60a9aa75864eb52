"""Machines of systemd-nspawn: what systemd-machined says of them."""

from __future__ import annotations

from typing import Optional

from gpuguard.errors import RuntimeFileAbsentError
from gpuguard.model.json_text import said_of
from gpuguard.model.machine import Machine
from gpuguard.model.scope_name import NSPAWN, ContainerScope
from gpuguard.runtimes.trusted import TrustedFiles

_MACHINES = "/run/systemd/machines"
_SERVICE = "systemd-nspawn"
_MAX_BYTES = 1 << 14


def is_container(files: TrustedFiles, container: ContainerScope) -> bool:
    """Whether a machine is a container of nspawn's that is held by the scope of its name, not a virtual machine.

    Raises RuntimeFileError or SpecError.
    """
    machine = _machine(files, container.id)
    return (
        machine is not None
        and machine.name == container.id
        and machine.container
        and machine.service == _SERVICE
        and ContainerScope.parse(machine.unit) == ContainerScope(NSPAWN, container.id)
    )


def _machine(files: TrustedFiles, name: str) -> Optional[Machine]:
    path = f"{_MACHINES}/{name}"
    try:
        text = files.read(path, _MAX_BYTES).text
    except RuntimeFileAbsentError:
        return None
    with said_of(path):
        return Machine.parse(text)
