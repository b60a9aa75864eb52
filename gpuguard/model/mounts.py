"""What a container's mounts prove of the devices that NVIDIA's hook gave it. Pure.

The hook mounts the host's node over an empty file at the same path in the container, read-only, nosuid and noexec
(libnvidia-container 1.17, src/nvc_mount.c, mount_device). Others can have such a mount made: who starts a container, by
`-v /dev/nvidia1:/dev/nvidia1`; its first process, where it sees the host's /dev and may make a mount namespace of its
own, as in a user namespace. So they count only where neither can have been. Format: proc_pid_mountinfo(5).
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Optional

from gpuguard.model.majors import DeviceNumber
from gpuguard.model.oci_spec import Mount, OciSpec
from gpuguard.model.pathname import shortest

_FLAGS = frozenset({"ro", "nosuid", "noexec"})
_NO_BINDS = frozenset({"cgroup", "cgroup2", "devpts", "mqueue", "overlay", "proc", "sysfs", "tmpfs"})
_ESCAPE = re.compile(r"\\([0-7]{3})")
# Where engines mount by a name that leads through a link of most images, /var/run to /run, and the hook mounts nothing.
_BELOW_VAR_RUN = ("/var/run/secrets/", "/var/run/nvidia-container-devices/")
_SEPARATOR = "-"
_LEAST_FIELDS = 6


@dataclass(frozen=True)
class ContainerInit:
    """What is seen of a container's first process.

    `user_depth`: 0 in the host's user namespace, 1 in one made from there, None otherwise. `owns_mounts`: its mount
    namespace was made in its user namespace. `shares_mounts`: that is the host's.
    """

    mountinfo: str
    user_depth: Optional[int] = 0
    owns_mounts: bool = True
    shares_mounts: bool = False


class HostDev(NamedTuple):
    """The host's /dev as mountinfo names it: the file system's "major:minor", and the path of /dev in it ("")."""

    device: str
    prefix: str = ""


class MountPoint(NamedTuple):
    """One line of mountinfo: what of which file system is mounted where."""

    device: str
    root: str
    path: str
    flags: frozenset[str]


def corroborated(
    init: ContainerInit, spec: OciSpec, dev: HostDev, nodes: Mapping[str, DeviceNumber]
) -> Optional[frozenset[DeviceNumber]]:
    """Return the devices of the host's `nodes` that the hook has mounted; None where mounts prove nothing."""
    points = parse_mountinfo(init.mountinfo)
    if points is None or not _made_by_runtime(init, spec) or _exposed(spec, points, dev, nodes):
        return None
    destinations = _destinations(spec.mounts, points)
    if destinations is None:
        return None
    binds = frozenset(destinations)
    asked_for = {nodes.get(shortest(mount.source)) for mount in spec.mounts}
    found = set()
    for point in points:
        path = _in_dev(point, dev)
        number = nodes.get(path) if path == point.path else None
        if number is not None and point.flags >= _FLAGS and binds.isdisjoint(_levels(point.path)):
            found.add(number)
    return frozenset(found - asked_for)


def parse_mountinfo(text: str) -> Optional[tuple[MountPoint, ...]]:
    """Read a mountinfo; None when a line of it is no mount."""
    points = []
    # A path may have any other character in it that splitlines() takes for an end.
    for line in text.removesuffix("\n").split("\n"):
        fields = line.split(" ")
        if len(fields) < _LEAST_FIELDS or _SEPARATOR not in fields[_LEAST_FIELDS:]:
            return None
        _, _, device, root, path, flags = fields[:_LEAST_FIELDS]
        points.append(MountPoint(device, _plain(root), _plain(path), frozenset(flags.split(","))))
    return tuple(points)


def _made_by_runtime(init: ContainerInit, spec: OciSpec) -> bool:
    """Whether the first process is in the namespaces that the runtime made, and can have changed no mount there.

    Without CAP_SYS_ADMIN it can leave them only for a user namespace of its own: then that is another one than the
    specification says, or was made within it. What its bounding set is now says nothing: it can drop that.
    """
    if spec.capabilities is None or "CAP_SYS_ADMIN" in spec.capabilities or "mount" not in spec.namespaces:
        return False
    depth = 1 if "user" in spec.namespaces else 0
    return init.user_depth == depth and init.owns_mounts and not init.shares_mounts


def _exposed(spec: OciSpec, points: tuple[MountPoint, ...], dev: HostDev, nodes: Mapping[str, DeviceNumber]) -> bool:
    """Whether the container has a directory with the host's nodes, to mount them from: by its word or in fact."""
    above = _above(nodes)
    if any(_is_bind(mount) and shortest(mount.source) in above for mount in spec.mounts):
        return True
    return any(_in_dev(point, dev) in above for point in points)


def _destinations(mounts: tuple[Mount, ...], points: tuple[MountPoint, ...]) -> Optional[list[str]]:
    """Return where the specification's bind mounts are; None when one of its mounts is not where it says.

    Then a link in the image may have led it elsewhere, or the first process has another root (CAP_SYS_CHROOT) and sees
    only some of them, under other names. What the hook has mounted must not pass for one of them: among that are files
    below /run.
    """
    seen = Counter(point.path for point in points)
    if not seen["/"]:
        return None
    binds = []
    for mount in mounts:
        path = shortest(mount.destination)
        if not seen[path] and path.startswith(_BELOW_VAR_RUN):
            path = path[len("/var") :]
        if not seen[path]:
            return None
        seen[path] -= 1
        if _is_bind(mount):
            binds.append(path)
    return binds


def _is_bind(mount: Mount) -> bool:
    return mount.type not in _NO_BINDS or mount.source.startswith("/")


def _in_dev(point: MountPoint, dev: HostDev) -> Optional[str]:
    """Return the path below the host's /dev that is mounted, None for what is not from there."""
    root = "" if point.root == "/" else point.root
    if point.device != dev.device:
        return None
    if root == dev.prefix:
        return "/dev"
    if root.startswith(dev.prefix + "/"):
        return "/dev" + root[len(dev.prefix) :]
    # What is above /dev in its file system shows it as well.
    return "/dev" if dev.prefix.startswith(root + "/") else None


def _above(nodes: Iterable[str]) -> frozenset[str]:
    """Return the directories that have some of the nodes below them."""
    return frozenset({"/", "/dev"}.union(*(_levels(posixpath.dirname(path)) for path in nodes)))


def _levels(path: str) -> Iterator[str]:
    """Yield a path, and all directories that it is below."""
    while path.strip("/"):
        yield path
        path = posixpath.dirname(path)
    yield "/"


def _plain(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), text)
