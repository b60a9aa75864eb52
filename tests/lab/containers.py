"""Docker and Podman in a node, both with runc and systemd as the cgroup manager, behind one face."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from tests.lab import image
from tests.lab.devices import Device
from tests.lab.errors import LabError
from tests.lab.machine import missing
from tests.lab.node import Node


class Container:
    """A running container that sleeps. Get it by `Engine.run()`."""

    def __init__(self, engine: Engine, name: str) -> None:
        self.name = name
        self.node = engine.node
        self._engine = engine
        self.id = self._inspect("{{.Id}}")
        self.pid = int(self._inspect("{{.State.Pid}}"))
        """Its first process, by its number in the node."""
        self.scope = f"{engine.scope_prefix}-{self.id}.scope"
        self.cgroup: Path = engine.node.cgroup(self.scope)
        """Its devices cgroup (v1) or its cgroup (v2), seen from outside."""

    def exec(self, argv: Sequence[str], *, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program in the container; by default its failure is the caller's to judge."""
        return self._engine.command("exec", self.name, *argv, check=check)

    def update_cpu_shares(self, shares: int) -> None:
        """Change its CPU weight, which makes the engine have systemd rewrite the unit's control group.

        On a node without the CPU controller runc then fails, but only after it has had systemd do that.
        """
        if has_cpu_controller(self.node):
            self._engine.command("update", f"--cpu-shares={shares}", self.name)
            return
        [state] = self.node.path("/run").glob(f"{self._engine.runc_states}/{self.id}")
        root = Path("/", state.relative_to(self.node.path("/"))).parent
        update = self.node.run(["runc", f"--root={root}", "update", f"--cpu-share={shares}", self.id], check=False)
        if "cpu.weight: no such file" not in update.stderr:
            raise LabError(f"runc update failed otherwise than for want of the CPU controller: {update.stderr}")

    def stop(self) -> None:
        """End and remove it."""
        self._engine.remove(self)

    def _inspect(self, template: str) -> str:
        return self._engine.command("inspect", f"--format={template}", self.name).stdout.strip()


def has_cpu_controller(node: Node) -> bool:
    """Whether containers can have a CPU weight: a machine that has the controller on v1 leaves none to a v2 node."""
    return node.mode == "v1" or "cpu" in node.path("/sys/fs/cgroup/cgroup.controllers").read_text().split()


class Engine:
    """What Docker and Podman have in common. Starts with the first container wanted."""

    program: str
    programs: tuple[str, ...]
    scope_prefix: str
    run_options: tuple[str, ...] = ()
    runc_states: str
    """Where runc keeps its containers' states: a pattern, below /run."""
    unfiltered: tuple[str, ...]
    """Arguments of `run` for a container without any device filter."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._containers: list[Container] = []
        self._ready = False

    @classmethod
    def why_not(cls) -> Optional[str]:
        """Say which program this machine lacks, or return None."""
        return missing(*cls.programs)

    def run(self, name: str, devices: Sequence[Device] = (), args: Sequence[str] = ()) -> Container:
        """Start a container with these devices, and `args` between the engine's `run` and the image.

        `name` has two characters at least. Raises LabError with what the engine said.
        """
        if not self._ready:
            self._start()
            self.command("import", "-", image.NAME, stdin=image.archive())
            self._ready = True
        wanted = [f"--device={device.path}" for device in devices]
        options = ["--detach", f"--name={name}", "--network=none", *self.run_options, *wanted, *args]
        self.command("run", *options, image.NAME, "/bin/sleep", "1000000")
        container = Container(self, name)
        self._containers.append(container)
        return container

    def remove(self, container: Container) -> None:
        """End and remove a container, if it is still there."""
        self.command("rm", "--force", container.name)
        if container in self._containers:
            self._containers.remove(container)

    def clear(self) -> None:
        """End and remove all containers that were started here."""
        for container in tuple(self._containers):
            self.remove(container)

    def command(
        self, *argv: str, check: bool = True, stdin: bytes = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run the engine's client in the node."""
        return self.node.run([self.program, *argv], check=check, stdin=stdin, timeout=timeout)

    def _start(self) -> None:
        reason = self.why_not()
        if reason is not None:
            raise LabError(f"cannot start {self.program}: {reason}")


class Docker(Engine):
    """Docker with the systemd cgroup driver; dockerd is a unit of the node."""

    program = "docker"
    programs = ("docker", "dockerd", "containerd", "runc", "busybox")
    scope_prefix = "docker"
    runc_states = "docker/runtime-*/moby"
    # Not --privileged: Docker 20.10 then asks for capabilities that the machine itself may lack, and fails.
    unfiltered = ("--device-cgroup-rule=a *:* rwm",)

    def _start(self) -> None:
        super()._start()
        service = ["--unit=dockerd", "--service-type=notify", "--property=Delegate=yes", "--property=KillMode=process"]
        options = [
            "--bridge=none",
            "--iptables=false",
            "--ip-forward=false",
            "--storage-driver=vfs",
            "--exec-opt=native.cgroupdriver=systemd",
            "--data-root=/var/lib/lab-docker",
        ]
        try:
            self.node.run(["systemd-run", *service, "dockerd", *options])
        except LabError as error:
            log = self.node.run(["journalctl", "--unit=dockerd", "--lines=30", "--output=cat"], check=False).stdout
            raise LabError(f"dockerd does not start: {error}\n{log}") from error


class Podman(Engine):
    """Podman with runc; it has no daemon."""

    program = "podman"
    programs = ("podman", "conmon", "runc", "busybox")
    scope_prefix = "libpod"
    runc_states = "runc"
    unfiltered = ("--privileged",)
    # On a machine whose pids controller is on v1, a v2 node has none, and Podman's own limit cannot be set.
    # The container's `sleep` is PID 1 and heeds no SIGTERM; `rm --time=0` is not known to Podman 3.
    run_options = ("--pids-limit=0", "--log-driver=k8s-file", "--stop-signal=KILL")

    def command(
        self, *argv: str, check: bool = True, stdin: bytes = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run podman in the node, with a store of its own."""
        store = ["--root=/var/lib/lab-podman", "--runroot=/run/lab-podman", "--storage-driver=vfs"]
        ways = ["--runtime=runc", "--cgroup-manager=systemd", "--events-backend=file"]
        return super().command(*store, *ways, *argv, check=check, stdin=stdin, timeout=timeout)
