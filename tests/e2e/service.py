"""gpuguard as systemd runs it: the unit of this source tree, with the tree itself for the program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpuguard.report.kinds import KINDS
from tests.e2e.gpuguard import Gpuguard
from tests.lab.node import ROOT
from tests.lab.poll import until
from tests.lab.scope import Scope

_UNITS = "/etc/systemd/system"
_PROGRAM = "/usr/bin/gpuguard"


class Service(Gpuguard):
    """The service of a node. Make it before the containers: systemd has to read its unit."""

    config = "/etc/gpuguard/gpuguard.toml"

    def install(self, settings: str = "") -> None:
        """Put the unit and the program in place; `settings` are lines for the unit's [Service]."""
        program = self.node.path(_PROGRAM)
        program.write_text(f'#!/bin/sh\nexec env PYTHONPATH={ROOT} {sys.executable} -m gpuguard "$@"\n')
        program.chmod(0o755)
        for name in ("gpuguard.service", "gpuguard.slice"):
            self.node.path(f"{_UNITS}/{name}").write_text((ROOT / "systemd" / name).read_text(encoding="utf-8"))
        drop_in = self.node.path(f"{_UNITS}/gpuguard.service.d/test.conf")
        drop_in.parent.mkdir(exist_ok=True)
        # A source tree below /tmp would be out of its sight.
        drop_in.write_text(f"[Service]\nBindReadOnlyPaths={ROOT}\n{settings}\n")
        self.node.run(["systemctl", "daemon-reload"])

    def start(self, *options: str) -> Service:
        """Start the service; systemctl waits until it is ready."""
        assert not options, "its command line is the unit's"
        self.systemctl("start")
        until(self._serves, 30, "the metrics")
        return self

    def systemctl(self, verb: str) -> None:
        """Have systemd do something to the service."""
        self.node.run(["systemctl", verb, "gpuguard.service"])

    def show(self, name: str) -> str:
        """Return a property of the unit."""
        return self.node.run(["systemctl", "show", "--value", f"--property={name}", "gpuguard.service"]).stdout.strip()

    def journal(self, *options: str) -> str:
        """Return what journalctl tells of gpuguard."""
        self.node.run(["journalctl", "--sync"])
        return self.node.run(["journalctl", "--identifier=gpuguard", *options]).stdout

    def entries(self, kind: KINDS, scope: Scope) -> list[dict[str, Any]]:
        """Return the journal's entries of one kind about one scope, with all fields."""
        matches = [f"MESSAGE_ID={kind.message_id}", f"GPUGUARD_SCOPE={scope.name}"]
        lines = self.journal("--output=json", "--all", *matches).splitlines()
        return [json.loads(line) for line in lines]

    def __exit__(self, *_: object) -> None:
        """Stop the service and remove what was put in place."""
        self.systemctl("stop")
        self.node.run(["rm", "-rf", f"{_UNITS}/gpuguard.service", f"{_UNITS}/gpuguard.service.d", _PROGRAM])
        self.node.run(["rm", "-f", f"{_UNITS}/gpuguard.slice"])
        self.node.run(["rm", "-rf", str(Path(self.config).parent)])
        super().__exit__()
