"""gpuguard's daemon as a process on a simulated node, and what it has told."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Optional

from tests.lab.daemon import Daemon
from tests.lab.marks import marked_below
from tests.lab.poll import until
from tests.lab.sim.node import ROOT, SimNode
from tests.lab.sim.scope import SimScope

# Seconds; far more than is ever needed, since the machine may be busy.
PATIENCE = 30.0


class Gpuguard:
    """gpuguard's daemon on a simulated node, with a configuration file."""

    def __init__(self, node: SimNode) -> None:
        self.node = node
        self.config = node.path("/gpuguard.toml")
        self.metrics = node.path("/metrics.sock")
        self.write()

    def write(self, **tables: Mapping[str, object]) -> None:
        """Write the configuration: these tables on top of quick ones."""
        quick: dict[str, Mapping[str, object]] = {
            "guard": {"settle": "300ms", "poll_interval": "100ms"},
            "metrics": {"listen": f"unix:{self.metrics}"},
            "log": {"format": "json", "level": "debug"},
            "paths": self.node.config_paths(),
        }
        lines = []
        for name in {**quick, **tables}:
            lines.append(f"[{name}]")
            table = {**quick.get(name, {}), **tables.get(name, {})}
            lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        self.config.write_text("\n".join(lines) + "\n")

    def spawn(self, *options: str, env: Optional[Mapping[str, str]] = None) -> Daemon:
        """Start the daemon."""
        argv = [sys.executable, "-m", "gpuguard", "run", "--config", str(self.config), *options]
        return self.node.daemon(argv, env=env)

    def start(self, *options: str, env: Optional[Mapping[str, str]] = None) -> Daemon:
        """Start the daemon and wait until it has looked at everything."""
        daemon = self.spawn(*options, env=env)
        daemon.await_output('"kind": "started"', PATIENCE)
        return daemon

    def command(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run one of gpuguard's commands to its end."""
        line = [sys.executable, "-m", "gpuguard", argv[0], "--config", str(self.config), *argv[1:]]
        return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE)

    def states(self) -> list[str]:
        """Return the states of the containers that have one, as `gpuguard status --json` tells them."""
        done = self.command("status", "--json")
        return [container["state"] for container in json.loads(done.stdout)["containers"]]


def events(daemon: Daemon, *kinds: str) -> list[dict[str, Any]]:
    """Return the entries of its log of these kinds."""
    entries = [json.loads(line) for line in daemon.output().splitlines() if line.startswith("{")]
    return [entry for entry in entries if entry.get("kind") in kinds]


def await_event(daemon: Daemon, kind: str, number: int = 1) -> None:
    """Wait until it has told of a kind so often."""
    until(lambda: len(events(daemon, kind)) >= number, PATIENCE, f"{kind!r} in the log: {daemon.output()[-2000:]}")


def await_sentinel(daemon: Daemon, scope: SimScope) -> None:
    """Wait until the sentinel watches a container. Without root it watches none.

    A simulated list is a new file after each change. A sentinel that comes in the middle of a loss gives back what it
    sees missing, does not see that it is back, and tells nothing; and the daemon finds nothing lost any more.
    """
    file = scope.cgroup / "devices.allow"
    if os.geteuid() == 0:
        until(lambda: marked_below(daemon.pid, file), PATIENCE, f"the sentinel to watch {scope.name}")


@contextlib.contextmanager
def connected(path: Path) -> Iterator[socket.socket]:
    """Connect to a Unix socket."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(PATIENCE)
        client.connect(str(path))
        yield client


def scrape(path: Path, page: str) -> str:
    """Get a page of the endpoint, head and body."""
    until(path.exists, PATIENCE, "the endpoint's socket")
    with connected(path) as client:
        client.sendall(f"GET {page} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        return b"".join(iter(lambda: client.recv(65536), b"")).decode()
