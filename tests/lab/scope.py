"""A bare scope: what a container engine asks systemd for, without the engine."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.lab.daemon import Daemon
from tests.lab.poll import until

if TYPE_CHECKING:
    from tests.lab.node import Node

# What runc 1.1 gives every container, as systemd is told by `DeviceAllow`.
BASICS = (
    "/dev/null rwm",
    "/dev/zero rwm",
    "/dev/full rwm",
    "/dev/random rwm",
    "/dev/urandom rwm",
    "/dev/tty rwm",
    "char-pts rwm",
)


def random_name(prefix: str = "docker") -> str:
    """Return a scope name as a container engine makes it: prefix and 64 hexadecimal digits."""
    return f"{prefix}-{secrets.token_hex(32)}.scope"


class Scope:
    """A transient scope with one sleeping process. Get it by `Node.scope()`, or here with more properties."""

    def __init__(
        self, node: Node, name: str, device_allow: Sequence[str], policy: str, properties: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.node = node
        entries = [f"--property=DeviceAllow={entry}" for entry in device_allow]
        others = [f"--property={text}" for text in properties]
        options = [f"--property=DevicePolicy={policy}", *entries, *others]
        self._sleeper: Daemon = node.daemon(
            ["systemd-run", "--scope", "--collect", f"--unit={name}", *options, "sleep", "infinity"]
        )
        self._sleeper.await_output(f"as unit: {name}")  # "Running scope as" until systemd 254
        self.cgroup: Path = node.cgroup(name)

    @property
    def pid(self) -> int:
        """The sleeping process, by its number outside the node."""
        return self._sleeper.pid

    def stop(self) -> None:
        """End the scope and wait until its control group is gone."""
        self._sleeper.kill()
        until(lambda: not self.cgroup.exists(), 40, f"the end of {self.name}")
