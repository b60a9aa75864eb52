"""Which control groups are containers: scopes, and containers that have none of their own.

The name of a scope is systemd's word. Any other name anybody may have given who could make the directory.

Without systemd (the runtimes' cgroupfs driver): /docker/ID, /kubepods/[burstable/|besteffort/]podUID/ID (kubelet,
cm/pod_container_manager_linux.go), /NAMESPACE/ID (containerd, oci/spec.go), /libpod_parent/[POD/]libpod-ID (Podman),
and below any parent that the user has named ID, libpod-ID or crio-ID. Below a unit: libpod-payload-ID (Podman's
--cgroups=split, which quadlets have).
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Optional

from gpuguard.model.pathname import NO_NAMES
from gpuguard.model.scope_name import ContainerScope

UNIT_SUFFIXES = (".scope", ".service")
SLICE = ".slice"
PAYLOAD = "libpod-payload-"
# From /libpod_parent/ID to /ROOT/kubepods/burstable/podUID/ID.
MOST_LEVELS = 5

# None of these names is a container's: systemd's units, and LXC's containers with all that is in them.
_UNITS = (".scope", ".service", SLICE, ".mount", ".socket", ".swap", ".automount")
_LXC = ("lxc.", "lxc-")
_USER_MANAGER = "user@"
_HEX = r"[0-9a-f]{64}"
_ID = re.compile(_HEX)
_PAYLOAD_ID = re.compile(f"{PAYLOAD}({_HEX})")
_PREFIXED = re.compile(f"(libpod|crio)-({_HEX})")
_PREFIXES = {"libpod": "podman", "crio": "cri-o"}
# containerd lets its clients choose both (pkg/identifiers): no more than 76 characters of this form.
_IDENTIFIER = re.compile(r"(?=.{1,76}\Z)[A-Za-z0-9]+(?:[._-][A-Za-z0-9]+)*")
_KUBEPODS, _DOCKER, _PODMAN = "kubepods", "docker", "libpod_parent"
_CLASSES = frozenset({"burstable", "besteffort"})
_POD = re.compile(r"pod[0-9A-Za-z_-]{1,64}")


@dataclass(frozen=True)
class ContainerGroup:
    """A container, and the control group that its first process was put into.

    `unit` is what people and the journal see: the name of the unit, else the last part of the control group.
    `unit_group` is the control group of the unit that systemd knows, None where it knows none. `vouched`: the name
    alone proves nothing; the runtime's own files must name this very control group before it counts. The runtime of a
    container without a unit is a guess.
    """

    control_group: str
    unit: str
    unit_group: Optional[str]
    container: ContainerScope
    vouched: bool


# Each round of the clock asks about all that may be one.
@functools.lru_cache(maxsize=2048)
def parse(control_group: str) -> Optional[ContainerGroup]:
    """Read the name of a control group; None for all that is no container, or inside of one, or a user manager's."""
    slices, unit, below = _split(control_group)
    if unit:
        return _of_a_unit(control_group, unit, below)
    if slices or not below or any(map(no_parent, below)):
        return None
    container = _without_unit(below)
    return None if container is None else ContainerGroup(control_group, below[-1], None, container, vouched=True)


def no_parent(name: str) -> bool:
    """Whether no control group of this name holds containers without a unit: it is systemd's or LXC's."""
    return name.endswith(_UNITS) or name == "lxc" or name.startswith(_LXC)


@functools.lru_cache(maxsize=2048)
def may_hold_containers(control_group: str) -> bool:
    """Whether containers without a unit may be below a control group that is none itself, and none's inside."""
    _, unit, names = _split(control_group)
    return not (unit or not names or len(names) >= MOST_LEVELS or any(map(no_parent, names)) or _inside(names))


@functools.lru_cache(maxsize=2048)
def may_hold_payloads(unit: str) -> bool:
    """Whether Podman may have put a container below a unit: below a container, or a user manager, is not the host's."""
    return not unit.startswith(_USER_MANAGER) and ContainerScope.parse(unit) is None


def may_be_written(control_group: str) -> bool:
    """Whether device rules may be written there: to a unit, to what is below one, to a container without a unit.

    Never to a slice, to the root, or to what holds containers; nor below a user manager.
    """
    _, unit, below = _split(control_group)
    if not unit:
        return parse(control_group) is not None
    return not below or not (below[-1].endswith(SLICE) or unit.startswith(_USER_MANAGER))


def _split(control_group: str) -> tuple[list[str], str, list[str]]:
    """Return the slices, the unit ("" where there is none), and what is below both; nothing for what is no path."""
    top, *names = control_group.split("/")
    if top or "\0" in control_group or not NO_NAMES.isdisjoint(names):
        return [], "", []
    level = next((level for level, name in enumerate(names) if not name.endswith(SLICE)), len(names))
    slices, below = names[:level], names[level:]
    unit = below.pop(0) if below and below[0].endswith(UNIT_SUFFIXES) else ""
    return slices, unit, below


def _of_a_unit(control_group: str, unit: str, below: list[str]) -> Optional[ContainerGroup]:
    if not below:
        scope = ContainerScope.parse(unit)
        return None if scope is None else ContainerGroup(control_group, unit, control_group, scope, vouched=False)
    payload = _PAYLOAD_ID.fullmatch(below[0])
    if len(below) > 1 or payload is None or not may_hold_payloads(unit):
        return None
    unit_group = control_group[: -len(below[0]) - 1]
    return ContainerGroup(control_group, unit, unit_group, ContainerScope("podman", payload[1]), vouched=True)


def _without_unit(names: list[str]) -> Optional[ContainerScope]:
    *parents, name = names
    if not parents or len(names) > MOST_LEVELS or _inside(parents):
        return None
    if _KUBEPODS in names:
        return _named(name) if _of_pods(parents) else None
    named = _named(name)
    if named is not None:
        # What has no prefix there is a pod.
        return None if parents[0] == _PODMAN and named.runtime != "podman" else _guessed(parents, named)
    if _is_namespace(parents) and _IDENTIFIER.fullmatch(name):
        return ContainerScope("containerd", name)
    return None


def _inside(parents: list[str]) -> bool:
    """Whether these are, for certain, the names of a container's control group or of one below it."""
    if parents[0] == _PODMAN:
        return any(map(_PREFIXED.fullmatch, parents))
    return any(map(_named, parents))


def _of_pods(parents: list[str]) -> bool:
    """Whether a pod is the last of these, at a place where the kubelet puts pods."""
    below = parents[parents.index(_KUBEPODS) + 1 :] if _KUBEPODS in parents else []
    pod = below[1:] if below and below[0] in _CLASSES else below
    return len(pod) == 1 and _POD.fullmatch(pod[0]) is not None


def _is_namespace(parents: list[str]) -> bool:
    no_namespace = {_DOCKER, _PODMAN}
    return len(parents) == 1 and parents[0] not in no_namespace and _IDENTIFIER.fullmatch(parents[0]) is not None


def _named(name: str) -> Optional[ContainerScope]:
    """Read a name that only containers have, and pods of Podman; one without a prefix is taken for containerd's."""
    if _ID.fullmatch(name):
        return ContainerScope("containerd", name)
    prefixed = _PREFIXED.fullmatch(name)
    return None if prefixed is None else ContainerScope(_PREFIXES[prefixed[1]], prefixed[2])


def _guessed(parents: list[str], named: ContainerScope) -> ContainerScope:
    """Return Docker's for what has no prefix and is in no namespace of containerd's."""
    if named.runtime != "containerd" or _is_namespace(parents):
        return named
    return ContainerScope("docker", named.id)
