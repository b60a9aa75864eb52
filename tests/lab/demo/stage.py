"""The demo's stage: a real node with Docker or, where none can boot, a simulated one."""

from __future__ import annotations

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional, Union

from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.kernel.devices_v2 import DevicesV2
from gpuguard.model.ruleset import RuleSet
from tests.lab.containers import Container, Docker
from tests.lab.daemon import Daemon
from tests.lab.devices import CTL, GPU0, UVM
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.prober import Prober, Report
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

DEVICES = (GPU0, CTL, UVM)
GPU_MAJORS = {device.major for device in DEVICES}

Devices = Union[DevicesV1, DevicesV2]


class Box(ABC):
    """One GPU container on the stage."""

    shown: str
    """How it was started, for people."""
    scope: str

    @abstractmethod
    def rules(self) -> RuleSet:
        """Return what the kernel allows."""

    def gpu_rules(self) -> list[str]:
        """Return the lines about GPUs of what the kernel allows."""
        return [str(rule) for rule in self.rules() if rule.major in GPU_MAJORS]

    @abstractmethod
    def opens(self) -> Optional[tuple[bool, str]]:
        """Open /dev/nvidia0 from inside: whether it was allowed, and the detail. None where no kernel would tell."""

    @contextmanager
    def opening(self) -> Iterator[list[Report]]:
        """Open it in a tight loop meanwhile; the list holds the report afterwards, nothing where no kernel tells."""
        yield []


class Stage(ABC):
    """Where the demo plays."""

    title: str
    reload_shown = "systemctl daemon-reload"
    list_shown = "GPU rules in its devices.list"

    @abstractmethod
    def box(self, name: str) -> Box:
        """Start a GPU container."""

    @abstractmethod
    def reload(self) -> None:
        """Make systemd reload."""

    @abstractmethod
    def guard(self, config: str) -> Daemon:
        """Start gpuguard with this configuration, the node's paths added."""

    @abstractmethod
    def gpuguard(self, *argv: str) -> str:
        """Run one of gpuguard's commands and return what it printed. Raises LabError when it fails."""


class _RealBox(Box):
    def __init__(self, container: Container, prober: Prober, devices: Devices, group: str) -> None:
        self._devices = devices
        self._group = group
        self.shown = f"docker run --name {container.name} " + " ".join(f"--device {device.path}" for device in DEVICES)
        self.scope = container.scope
        self._container = container
        self._prober = prober

    def rules(self) -> RuleSet:
        return self._devices.read(self._group).rules

    def opens(self) -> tuple[bool, str]:
        answer = self._prober.open(self._container.cgroup, GPU0)
        why = {"ENXIO": "no driver behind it on this machine, but the cgroup lets it through"}
        return answer.allowed, why.get(str(answer), "Operation not permitted")

    @contextmanager
    def opening(self) -> Iterator[list[Report]]:
        reports: list[Report] = []
        with self._prober.loop(self._container.cgroup, GPU0) as loop:
            yield reports
            reports.append(loop.stop())


class RealStage(Stage):
    """A real systemd, Docker and kernel."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._docker = Docker(node)
        self._prober = Prober(node)
        systemd = node.run(["systemctl", "--version"]).stdout.split()[1]
        docker = node.run(["dockerd", "--version"]).stdout.split(",")[0]
        self.title = f"a throw-away node: systemd {systemd}, cgroup {node.mode}, {docker}"
        self._devices: Devices = DevicesV1(node.path("/sys/fs/cgroup/devices"))
        if node.mode == "v2":
            self._devices = DevicesV2(node.path("/sys/fs/cgroup"), tuple)
            self.list_shown = "GPU rules of its BPF programs"

    def box(self, name: str) -> Box:
        """Start a container with `docker run --device`."""
        container = self._docker.run(name, DEVICES)
        return _RealBox(container, self._prober, self._devices, f"/{container.cgroup.relative_to(self._devices.root)}")

    def reload(self) -> None:
        """Run `systemctl daemon-reload`."""
        self._node.run(["systemctl", "daemon-reload"])

    def guard(self, config: str) -> Daemon:
        """Start it as a process of the node."""
        self._node.path("/root/gpuguard.toml").write_text(config)
        return self._node.daemon([sys.executable, "-m", "gpuguard", "run", "--config", "/root/gpuguard.toml"])

    def gpuguard(self, *argv: str) -> str:
        """Run it in the node."""
        command = ["env", "-C", str(Path.cwd()), sys.executable, "-m", "gpuguard", *argv]
        return self._node.run([*command, "--config", "/root/gpuguard.toml"]).stdout


class _SimBox(Box):
    def __init__(self, scope: SimScope) -> None:
        self.shown = "a container's scope, made as runc does, GPU rules written as NVIDIA's hook does"
        self.scope = scope.name
        self._scope = scope

    def rules(self) -> RuleSet:
        return self._scope.rules()

    def opens(self) -> None:
        return None


class SimStage(Stage):
    """A simulated node: a private dbus-daemon, a fake systemd, a directory tree."""

    title = "a SIMULATED node: a fake systemd on a private dbus-daemon, and lists that no kernel enforces"
    reload_shown = "systemctl daemon-reload   (of the fake systemd)"

    def __init__(self, node: SimNode) -> None:
        self._node = node

    def box(self, name: str) -> Box:  # noqa: ARG002 - a scope has an id only
        """Make a scope with GPU rules that the fake systemd does not know."""
        return _SimBox(self._node.scope(hook_rules=[f"{device.rule} rw" for device in DEVICES]))

    def reload(self) -> None:
        """Have the fake systemd reload."""
        self._node.daemon_reload()

    def guard(self, config: str) -> Daemon:
        """Start it with paths that lead into the simulated node."""
        paths = "\n".join(f"{key} = {json.dumps(path)}" for key, path in self._node.config_paths().items())
        self._config.write_text(f"{config}\n[paths]\n{paths}\n")
        return self._node.daemon([sys.executable, "-m", "gpuguard", "run", "--config", self._config])

    def gpuguard(self, *argv: str) -> str:
        """Run it with the same paths."""
        command = [sys.executable, "-m", "gpuguard", *argv, "--config", str(self._config)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise LabError(f"gpuguard {' '.join(argv)} failed with status {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    @property
    def _config(self) -> Path:
        return self._node.path("/gpuguard.toml")


def lines_of(daemon: Daemon, scope: str, kinds: Iterable[str]) -> list[str]:
    """Return the messages of these kinds that gpuguard logged about one scope."""
    return [entry["event"] for entry in entries_of(daemon, scope, kinds)]


def entries_of(daemon: Daemon, scope: str, kinds: Iterable[str]) -> list[dict[str, Any]]:
    """Return the entries of these kinds that gpuguard logged, as JSON lines, about one scope."""
    wanted = set(kinds)
    entries = [json.loads(line) for line in daemon.output().splitlines() if line.startswith("{")]
    return [entry for entry in entries if entry.get("kind") in wanted and entry.get("scope") == scope]
