"""Docker and Podman in a node behind one face; by default both with runc, and with systemd as the cgroup manager."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Optional

from tests.lab import image
from tests.lab.cgroups import membership
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
        self.id, self.pid = engine.identify(name)
        """The pid is that of its first process, by its number in the node."""
        self.cgroup: Path = place(engine.node, self.pid)
        """The devices cgroup (v1) or the cgroup (v2) of that process, seen from outside."""
        self.scope = engine.scope(self)
        """Its unit; without systemd, the last part of its control group."""

    @property
    def group(self) -> str:
        """Its control group, as the node has it."""
        return "/" + str(self.cgroup.relative_to(top(self.node)))

    def exec(self, argv: Sequence[str], *, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a program in the container; by default its failure is the caller's to judge."""
        return self._engine.exec(self, argv, check=check)

    def update_cpu_shares(self, shares: int) -> None:
        """Change its CPU weight, which makes the engine have systemd rewrite the unit's control group.

        On a node without the CPU controller runc then fails, but only after it has had systemd do that.
        """
        if has_cpu_controller(self.node):
            self._engine.set_cpu_shares(self, shares)
            return
        update = self.runc("update", f"--cpu-share={shares}", check=False)
        if "cpu.weight: no such file" not in update.stderr:
            raise LabError(f"runc update failed otherwise than for want of the CPU controller: {update.stderr}")

    def runc(self, verb: str, *argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Do something to it by runc, behind the engine's back."""
        [state] = self.node.path("/run").glob(f"{self._engine.runc_states}/{self.id}")
        root = Path("/", state.relative_to(self.node.path("/"))).parent
        return self.node.run(["runc", f"--root={root}", verb, *argv, self.id], check=check)

    def stop(self) -> None:
        """End and remove it."""
        self._engine.remove(self)


def top(node: Node) -> Path:
    """Return the root of the node's devices hierarchy (v1), or of its only one (v2), seen from outside."""
    return node.path("/sys/fs/cgroup/devices" if node.mode == "v1" else "/sys/fs/cgroup")


def place(node: Node, pid: int) -> Path:
    """Return the devices cgroup (v1) or the cgroup (v2) of a process, given by its number in the node."""
    groups = membership(node.run(["cat", f"/proc/{pid}/cgroup"]).stdout)
    return top(node) / groups["devices" if node.mode == "v1" else ""].lstrip("/")


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

    def __init__(self, node: Node, *, cgroups: str = "systemd") -> None:
        """`cgroups`: who makes the containers' control groups, "systemd" or the engine itself ("cgroupfs")."""
        self.node = node
        self.cgroups = cgroups
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
            self._load()
            self._ready = True
        self._launch(name, devices, args)
        container = Container(self, name)
        self._containers.append(container)
        return container

    def identify(self, name: str) -> tuple[str, int]:
        """Return the id of a running container, and its first process, by its number in the node."""
        identity, pid = self.command("inspect", "--format={{.Id}} {{.State.Pid}}", name).stdout.split()
        return identity, int(pid)

    def scope(self, container: Container) -> str:
        """Return a container's unit; without systemd, the last part of its control group."""
        return f"{self.scope_prefix}-{container.id}.scope" if self.cgroups == "systemd" else container.cgroup.name

    def exec(self, container: Container, argv: Sequence[str], *, check: bool) -> subprocess.CompletedProcess[str]:
        """Run a program in a container."""
        return self.command("exec", container.name, *argv, check=check)

    def set_cpu_shares(self, container: Container, shares: int) -> None:
        """Change a container's CPU weight."""
        self.command("update", f"--cpu-shares={shares}", container.name)

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

    def _load(self) -> None:
        self.command("import", "-", image.NAME, stdin=image.archive())

    def _arguments(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> list[str]:
        wanted = [f"--device={device.path}" for device in devices]
        options = ["--detach", f"--name={name}", "--network=none", *self.run_options, *wanted, *args]
        return ["run", *options, image.NAME, "/bin/sleep", "1000000"]

    def _launch(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> None:
        self.command(*self._arguments(name, devices, args))


class Docker(Engine):
    """Docker; dockerd is a unit of the node."""

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
            f"--exec-opt=native.cgroupdriver={self.cgroups}",
            "--data-root=/var/lib/lab-docker",
        ]
        try:
            self.node.run(["systemd-run", *service, "dockerd", *options])
        except LabError as error:
            log = self.node.run(["journalctl", "--unit=dockerd", "--lines=30", "--output=cat"], check=False).stdout
            raise LabError(f"dockerd does not start: {error}\n{log}") from error


class Podman(Engine):
    """Podman; it has no daemon."""

    program = "podman"
    programs = ("podman", "conmon", "runc", "busybox")
    scope_prefix = "libpod"
    runc_states = "runc"
    unfiltered = ("--privileged",)
    # On a machine whose pids controller is on v1, a v2 node has none, and Podman's own limit cannot be set.
    # The container's `sleep` is PID 1 and heeds no SIGTERM; `rm --time=0` is not known to Podman 3.
    run_options = ("--pids-limit=0", "--log-driver=k8s-file", "--stop-signal=KILL")
    runtime = "runc"
    environment: Mapping[str, str] = {}

    def command(
        self, *argv: str, check: bool = True, stdin: bytes = b"", timeout: float = 60.0
    ) -> subprocess.CompletedProcess[str]:
        """Run podman in the node, with a store of its own."""
        return self.node.run([*self.client, *argv], check=check, stdin=stdin, timeout=timeout, env=self.environment)

    @property
    def client(self) -> Sequence[str]:
        """Podman's program and the options that all its commands have."""
        store = ["--root=/var/lib/lab-podman", "--runroot=/run/lab-podman", "--storage-driver=vfs"]
        ways = [f"--runtime={self.runtime}", f"--cgroup-manager={self.cgroups}", "--events-backend=file"]
        return [self.program, *store, *ways]


class Crun(Podman):
    """Podman with crun, which puts a container into a group of its own below its scope."""

    programs = ("podman", "conmon", "crun", "busybox")
    runtime = "crun"
    environment: Mapping[str, str] = {"CONTAINERS_CONF": "/etc/lab-containers.conf"}

    def unable(self) -> Optional[str]:
        """Say why crun cannot run in this node, or return None."""
        done = self.node.run(["prlimit", "--memlock=unlimited:unlimited", "true"], check=False)
        if self.node.mode == "v2" and done.returncode:
            return "crun wants RLIMIT_MEMLOCK lifted on cgroup v2, and this machine lacks CAP_SYS_RESOURCE for that"
        return None

    def _start(self) -> None:
        super()._start()
        # crun opens the host's /proc/sys for these, and there a node may write nothing.
        settings = "[containers]\ndefault_sysctls = []\n"
        self.node.path(self.environment["CONTAINERS_CONF"]).write_text(settings, encoding="ascii")
