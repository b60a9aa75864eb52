"""Containers as CRI-O leaves them: names, groups, notes, and the bundle on disk. No CRI-O runs: none is packaged.

After specifications of real ones that their users have published (CRI-O 1.18 and 1.2x).
"""

from __future__ import annotations

import json
import secrets
import subprocess
from collections.abc import Sequence
from typing import Any

from tests.lab import image
from tests.lab.containers import Container, Engine
from tests.lab.devices import Device
from tests.lab.node import Node

NAMESPACE, POD = "research", "train-0"
_ROOTFS = "/var/lib/lab-crio-rootfs"
_CONTAINERS = "/run/containers/storage/overlay-containers"
_DENY_ALL = {"allow": False, "access": "rwm"}


class Crio(Engine):
    """CRI-O, of which only runc is there."""

    program = "runc"
    programs = ("runc", "busybox")
    scope_prefix = "crio"
    runc_states = "runc"

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._ids: dict[str, str] = {}

    def exec(self, container: Container, argv: Sequence[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        """Run a program in a container."""
        return self.command("exec", container.id, *argv, check=check)

    def identify(self, name: str) -> tuple[str, int]:
        """Return the id of a running container, and its first process, by its number in the node."""
        identity = self._ids[name]
        return identity, int(self.node.path(f"{_CONTAINERS}/{identity}/userdata/pidfile").read_text(encoding="ascii"))

    def set_cpu_shares(self, container: Container, shares: int) -> None:
        """Change a container's CPU weight."""
        container.runc("update", f"--cpu-share={shares}")

    def remove(self, container: Container) -> None:
        """End and remove a container, if it is still there."""
        self.command("delete", "--force", container.id, check=False)
        self.node.run(["rm", "-rf", f"{_CONTAINERS}/{container.id}"])
        if container in self._containers:
            self._containers.remove(container)

    def _load(self) -> None:
        self.node.path(_ROOTFS).mkdir(parents=True, exist_ok=True)
        self.node.run(["tar", "-x", "-C", _ROOTFS], stdin=image.archive())
        # For the reason that is told of containerd's.
        self._launch("sandbox", (), ())

    def _launch(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> None:
        assert not args, "there is no command line"
        identity = self._ids[name] = secrets.token_hex(32)
        bundle = f"{_CONTAINERS}/{identity}/userdata"
        self.node.path(bundle).mkdir(parents=True)
        self.command("spec", f"--bundle={bundle}")
        file = self.node.path(f"{bundle}/config.json")
        spec = _changed(json.loads(file.read_text(encoding="utf-8")), identity, name, devices)
        file.write_text(json.dumps(spec), encoding="utf-8")
        # The container keeps what runc was given to write to.
        ways = f"--detach --pid-file={bundle}/pidfile --bundle={bundle} {identity}"
        command = f"runc --systemd-cgroup run {ways} </dev/null >{bundle}/log 2>&1 || {{ cat {bundle}/log; exit 1; }}"
        self.node.run(["sh", "-c", command])


def _changed(spec: dict[str, Any], identity: str, name: str, devices: Sequence[Device]) -> dict[str, Any]:
    """Turn runc's own example into a pod's container."""
    spec["process"].update(terminal=False, args=["/bin/sleep", "1000000"])
    spec["root"] = {"path": _ROOTFS, "readonly": True}
    spec["annotations"] = {
        "io.container.manager": "cri-o",
        "io.kubernetes.container.name": name,
        "io.kubernetes.pod.name": POD,
        "io.kubernetes.pod.namespace": NAMESPACE,
        "io.kubernetes.cri-o.ContainerID": identity,
        "io.kubernetes.cri-o.ContainerType": "container",
        "io.kubernetes.cri-o.SandboxID": secrets.token_hex(32),
    }
    numbers = [{"type": "c", "major": device.major, "minor": device.minor} for device in devices]
    spec["linux"]["devices"] = [{"path": device.path, **number} for device, number in zip(devices, numbers)]
    allowed = [{"allow": True, "access": "rwm", **number} for number in numbers]
    spec["linux"]["resources"] = {"devices": [_DENY_ALL, *allowed]}
    uid = secrets.token_hex(16)
    spec["linux"]["cgroupsPath"] = f"kubepods-besteffort-pod{uid}.slice:crio:{identity}"
    return spec
