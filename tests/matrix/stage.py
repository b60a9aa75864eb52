"""One node of a distribution with its two container engines, a hook as NVIDIA's, and gpuguard installed when wanted."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack

from tests.e2e import hooks
from tests.lab.containers import Container, Docker, Engine, Podman
from tests.lab.distribution import root
from tests.lab.node import Node
from tests.lab.prober import Prober
from tests.matrix.installed import Installed, make_install


class Stage:
    """A node booted from a distribution's root; gpuguard's service does not run on it until a test starts it."""

    def __init__(self, suite: str, mode: str, end: ExitStack) -> None:
        self.suite = suite
        self.node = end.enter_context(Node.boot(mode, root(suite)))
        hooks.install(self.node)
        self.prober = Prober(self.node)
        self.engines: dict[str, Engine] = {"docker": Docker(self.node), "podman": Podman(self.node)}
        self.install_said = ""
        """What `make install` said, once it was run."""

    def gpuguard(self, **tables: Mapping[str, object]) -> Installed:
        """Return gpuguard with these tables of the configuration; its service is not started."""
        if not self.install_said:
            self.install_said = make_install(self.node)
            self.node.run(["systemctl", "stop", "gpuguard.service"])
        return Installed(self.node, **tables)

    def reload(self) -> None:
        """Reload systemd."""
        self.node.run(["systemctl", "daemon-reload"])

    def start_beside(self, container: Container) -> None:
        """Start a unit in the container's slice, and wait until systemd has written what it writes for that."""
        unit = ["systemctl", "show", "--value", "--property=Slice", container.scope]
        self.node.run(["systemd-run", "--collect", f"--slice={self.node.run(unit).stdout.strip()}", "true"])
        self.node.carried_out()

    def device_allow(self, container: Container) -> frozenset[str]:
        """Return what systemd has been told to allow the container."""
        show = ["systemctl", "show", "--value", "--property=DeviceAllow", container.scope]
        return frozenset(self.node.run(show).stdout.splitlines())

    def rewrite(self, container: Container) -> None:
        """Make systemd rewrite the container's device rules: by a reload, and what systemd 256 and 257 want besides.

        There (cgroup.c) a reload marks every unit's rules as to be rewritten, and does so no earlier than when the
        next unit of the same slice starts.
        """
        self.reload()
        self.start_beside(container)
