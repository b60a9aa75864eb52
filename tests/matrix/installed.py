"""gpuguard as `make install` leaves it on a node, run by the node's own Python; nothing in there is this machine's."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import Any

from gpuguard.report.kinds import KINDS
from tests.e2e.gpuguard import RUN
from tests.e2e.service import Service
from tests.lab import pip
from tests.lab.node import ROOT, Node

_SOURCE = "/srv/source-of-gpuguard"
_SHIPPED = ("gpuguard", "systemd", "deploy", "docs", "tools", "pyproject.toml", "README.md", "CHANGELOG.md")


def make_install(node: Node) -> str:
    """Do what `make install` does, from a copy of the source; the service then runs. Returns what it said."""
    node.run(["mkdir", "-p", _SOURCE])
    node.run(["cp", "-r", *(str(ROOT / name) for name in _SHIPPED), _SOURCE])
    # A node shares the network with the machine: the default port may be taken.
    node.path(f"{_SOURCE}/deploy/gpuguard.toml").write_text('[metrics]\nlisten = ""\n')
    return node.run([f"{_SOURCE}/tools/install"], timeout=300, env=pip.lend(node)).stdout


class Installed(Service):
    """The installed service, with a configuration of one test."""

    def __init__(self, node: Node, **tables: Mapping[str, object]) -> None:
        super().__init__(node, log={"format": "auto"}, **tables)

    def run(self, command: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run one of gpuguard's commands as an operator does."""
        return self.node.run(["gpuguard", command, *argv], check=False)

    def output(self) -> str:
        """Return what the journal has of it."""
        return self.journal("--output=cat")

    def told(self, kind: KINDS, scope: str) -> list[dict[str, Any]]:
        """Return the journal's entries of one kind about one scope, with all fields."""
        self.node.run(["journalctl", "--sync"])
        matches = [f"MESSAGE_ID={kind.message_id}", f"GPUGUARD_SCOPE={scope}"]
        lines = self.node.run(["journalctl", "--output=json", "--all", *matches]).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def __enter__(self) -> Installed:  # noqa: PYI034  # typing.Self came with Python 3.11
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the service and forget what it learnt; it stays installed."""
        self.systemctl("stop")
        self.node.run(["rm", "-rf", RUN])
