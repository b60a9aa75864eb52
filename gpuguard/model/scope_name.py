"""Which systemd scopes are containers, told by their names alone."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

_HEX = re.compile(r"[0-9a-f]{64}")
# containerd lets its clients choose (pkg/identifiers): no more than 76 characters of this form.
_IDENTIFIER = re.compile(r"(?!conmon-)(?!.*-exec$)(?=.{1,76}$)[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")

# runc names the scope PREFIX-ID.scope and escapes nothing (libcontainer/cgroups/systemd, getUnitName).
_RUNTIMES = (
    ("docker", "docker-", _HEX),
    ("podman", "libpod-", _HEX),
    ("cri-o", "crio-", _HEX),
    ("containerd", "cri-containerd-", _IDENTIFIER),
    ("nerdctl", "nerdctl-", _IDENTIFIER),
)

NSPAWN = "nspawn"
# systemd-machined registers containers and virtual machines alike, under a host name (hostname_is_valid).
_MACHINE = "machine-"
_MACHINE_NAME = re.compile(r"(?=.{1,64}$)[A-Za-z0-9_]+(?:(?:\.|-+)[A-Za-z0-9_]+)*")
_ESCAPE = re.compile(r"\\x([0-9a-f]{2})")


@dataclass(frozen=True)
class ContainerScope:
    """A container as its scope's name tells it: the runtime and the container's id.

    A machine ("nspawn", with its name as its id) may as well be a virtual one: only what systemd-machined says of it
    makes it a container.
    """

    runtime: str
    id: str

    @classmethod
    def parse(cls, unit: str) -> Optional[ContainerScope]:
        """Read a unit name. None for all that is no container: conmon, exec sessions, builds, other units."""
        name, dot, kind = unit.rpartition(".")
        if not dot or kind != "scope":
            return None
        for runtime, prefix, form in _RUNTIMES:
            container = name[len(prefix) :]
            if name.startswith(prefix) and form.fullmatch(container):
                return cls(runtime, container)
        if name.startswith(_MACHINE):
            machine = _unescaped(name[len(_MACHINE) :])
            return cls(NSPAWN, machine) if machine is not None and _MACHINE_NAME.fullmatch(machine) else None
        return None


def _unescaped(text: str) -> Optional[str]:
    r"""Undo the escaping of a unit's name (systemd.unit(5)): "\x2d" is "-", and "-" is "/", which no machine has."""
    if "-" in text:
        return None
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text)
