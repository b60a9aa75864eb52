"""containerd in a node, driven by ctr, with what its CRI plugin leaves of a pod's container: names, groups, notes."""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Sequence

from tests.lab import image
from tests.lab.containers import Container, Engine
from tests.lab.devices import Device
from tests.lab.errors import LabError
from tests.lab.node import Node

NAMESPACE, POD = "research", "train-0"
_ROOTFS = "/var/lib/lab-containerd-rootfs"
_STATES = "/run/containerd/io.containerd.runtime.v2.task"


class Containerd(Engine):
    """containerd with runc; it is a unit of the node. Its containers are those of a pod, as the kubelet has them."""

    program = "ctr"
    programs = ("ctr", "containerd", "runc", "busybox")
    scope_prefix = "cri-containerd"
    containerd_namespace = "k8s.io"
    runc_states = "containerd/runc/k8s.io"
    unfiltered = ("--privileged",)
    # As the CRI plugin gives them; ctr's own are 1024, which a node without the CPU controller cannot set.
    run_options = ("--cpu-shares=0", "--env=PATH=/bin")

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self._ids: dict[str, str] = {}

    def command(
        self, *argv: str, check: bool = True, stdin: bytes = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run ctr in the node, in the namespace of the containers."""
        return super().command(
            f"--namespace={self.containerd_namespace}", *argv, check=check, stdin=stdin, timeout=timeout
        )

    def exec(self, container: Container, argv: Sequence[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        """Run a program in a container."""
        exec_id = f"--exec-id={secrets.token_hex(8)}"
        return self.command("tasks", "exec", exec_id, container.id, *argv, check=check)

    def identify(self, name: str) -> tuple[str, int]:
        """Return the id of a running container, and its first process, by its number in the node."""
        identity = self._ids[name]
        pid = self.node.path(f"{_STATES}/{self.containerd_namespace}/{identity}/init.pid").read_text(encoding="ascii")
        return identity, int(pid)

    def set_cpu_shares(self, container: Container, shares: int) -> None:
        """Change a container's CPU weight, as the CRI plugin does for the kubelet: by runc."""
        container.runc("update", f"--cpu-share={shares}")

    def remove(self, container: Container) -> None:
        """End and remove a container, if it is still there."""
        self.command("tasks", "delete", "--force", container.id, check=False)
        self.command("containers", "delete", container.id, check=False)
        self._ids.pop(container.name, None)
        if container in self._containers:
            self._containers.remove(container)

    def annotations(self, name: str) -> dict[str, str]:
        """Return what the specification of a container notes of it (containerd, pkg/cri/annotations)."""
        return {
            "io.kubernetes.cri.container-type": "container",
            "io.kubernetes.cri.container-name": name,
            "io.kubernetes.cri.sandbox-id": secrets.token_hex(32),
            "io.kubernetes.cri.sandbox-name": POD,
            "io.kubernetes.cri.sandbox-namespace": NAMESPACE,
        }

    def parent(self) -> str:
        """Return the slice for another container: of a pod of its own."""
        uid = "_".join(secrets.token_hex(length) for length in (4, 2, 2, 2, 6))
        return f"kubepods-burstable-pod{uid}.slice"

    def _launch(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> None:
        identity = self._ids[name] = secrets.token_hex(32)
        notes = [f"--annotation={key}={value}" for key, value in self.annotations(name).items()]
        group = f"--cgroup={self.parent()}:{self.scope_prefix}:{identity}"
        wanted = [f"--device={device.path}" for device in devices]
        options = ["--detach", "--rootfs", "--runc-systemd-cgroup", group, *self.run_options, *notes, *wanted, *args]
        self.command("run", *options, _ROOTFS, identity, "/bin/sleep", "1000000")

    def _start(self) -> None:
        super()._start()
        if self.node.run(["systemctl", "is-active", "lab-containerd"], check=False).returncode == 0:
            return
        service = ["--unit=lab-containerd", "--service-type=notify", "--property=Delegate=yes"]
        try:
            # Its own directory in /var would be the machine's, with the containers that are there.
            self.node.run(
                ["systemd-run", *service, "--property=KillMode=process", "containerd", "--root=/var/lib/lab-containerd"]
            )
        except LabError as error:
            log = self.node.run(["journalctl", "--unit=lab-containerd", "--lines=30", "--output=cat"], check=False)
            raise LabError(f"containerd does not start: {error}\n{log.stdout}") from error

    def _load(self) -> None:
        self.node.path(_ROOTFS).mkdir(parents=True, exist_ok=True)
        self.node.run(["tar", "-x", "-C", _ROOTFS], stdin=image.archive())
        # On cgroup v1 systemd puts the first container below kubepods.slice into the devices cgroup of its slice, as it
        # makes that one after the container's own. The kubelet's first is a pod's empty sandbox.
        self._launch("sandbox", (), ())


class Nerdctl(Containerd):
    """containerd's containers as nerdctl names them: a namespace, a scope and notes of its own. No nerdctl runs."""

    scope_prefix = "nerdctl"
    containerd_namespace = "default"
    runc_states = "containerd/runc/default"

    def annotations(self, name: str) -> dict[str, str]:
        """Return what the specification of a container notes of it (nerdctl, pkg/labels)."""
        return {"nerdctl/name": name, "nerdctl/namespace": self.containerd_namespace}

    def parent(self) -> str:
        """Return the slice for another container."""
        return "system.slice"
