"""gpuguard in a node, as an operator has it: a configuration, the daemon, the commands, the metrics, the log."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Optional

from prometheus_client.parser import text_string_to_metric_families

from gpuguard.guard import control
from gpuguard.model.reports import RepairReport
from tests.lab.daemon import Daemon
from tests.lab.errors import LabError
from tests.lab.marks import marked_below
from tests.lab.node import ROOT, Node
from tests.lab.poll import until

RUN = "/run/gpuguard"
POLL = 0.5  # seconds
SETTLE = 0.3
_SOCKET = f"{RUN}/metrics.sock"
_REST = 10.0
_PATIENCE = 30.0  # seconds; far more than is ever needed, since the machine may be busy

_DEFAULTS: Mapping[str, Mapping[str, object]] = {
    "guard": {"poll_interval": f"{POLL * 1000:.0f}ms", "settle": f"{SETTLE * 1000:.0f}ms"},
    "metrics": {"listen": f"unix:{_SOCKET}"},
    "log": {"format": "json", "level": "debug"},
}


class Gpuguard(AbstractContextManager["Gpuguard"]):
    """The one gpuguard of a node. Its tables of the configuration are `tables` on top of quick ones for tests."""

    config = "/root/gpuguard.toml"
    program: Sequence[str] = (sys.executable, "-m", "gpuguard")
    pace = POLL
    """What a round of the clock takes at least for `await_rounds`, in seconds."""

    def __init__(self, node: Node, **tables: Mapping[str, object]) -> None:
        self.node = node
        self._daemons: list[Daemon] = []
        self._text = ""
        self.configure(**tables)

    def configure(self, **tables: Mapping[str, object]) -> None:
        """Write the configuration file; a running daemon reads it at SIGHUP."""
        names = {**_DEFAULTS, **tables}
        lines = []
        for name in names:
            lines.append(f"[{name}]")
            table = {**_DEFAULTS.get(name, {}), **tables.get(name, {})}
            lines += [f"{key} = {json.dumps(value)}" for key, value in table.items()]
        self.node.path(self.config).write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def daemon(self) -> Daemon:
        """The daemon that was started last."""
        return self._daemons[-1]

    def output(self) -> str:
        """Return all that the daemons so far have printed."""
        return "".join(daemon.output() for daemon in self._daemons)

    def spawn(self, *options: str) -> Daemon:
        """Start the daemon and do not wait for it."""
        self._daemons.append(self.node.daemon([*self.program, "run", f"--config={self.config}", *options]))
        return self.daemon

    def start(self, *options: str) -> Gpuguard:
        """Start the daemon and wait until it has looked at everything once and serves its metrics."""
        self.spawn(*options).await_output('"kind": "started"', _PATIENCE)
        until(self._serves, _PATIENCE, "the metrics")
        return self

    def run(self, command: str, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run one of gpuguard's commands in the node; its failure is the caller's to judge."""
        program = ["env", "-C", str(ROOT), sys.executable, "-m", "gpuguard", command, f"--config={self.config}", *argv]
        return self.node.run(program, check=False)

    def repair(self, *names: str) -> RepairReport:
        """Have the daemon repair, as `gpuguard repair` does, without the time that starting a program takes."""
        return asyncio.run(control.repair(self.node.path(RUN), names))

    def status(self) -> dict[str, dict[str, Any]]:
        """Return the containers of `gpuguard status --json`, by scope."""
        done = self.run("status", "--json")
        assert done.returncode == 0, done.stderr
        return {container["scope"]: container for container in json.loads(done.stdout)["containers"]}

    def events(self, *kinds: str, scope: Optional[str] = None) -> list[dict[str, Any]]:
        """Return the daemon's log entries of these kinds, by default of all, and of one scope."""
        lines = [line for line in self.daemon.output().splitlines() if line.startswith("{") and line.endswith("}")]
        entries = [json.loads(line) for line in lines]
        return [
            entry
            for entry in entries
            if (not kinds or entry.get("kind") in kinds) and (scope is None or entry.get("scope") == scope)
        ]

    def total(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        return sum(self.samples(name, **labels).values())

    def samples(self, name: str, **labels: str) -> dict[frozenset[tuple[str, str]], float]:
        """Return a metric's samples that have these labels."""
        return {
            frozenset(sample.labels.items()): sample.value
            for family in text_string_to_metric_families(self._metrics())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        }

    def deeds(self) -> dict[frozenset[tuple[str, str]], float]:
        """Return the counters of what was done: all samples of gpuguard_repairs_total."""
        return self.samples("gpuguard_repairs_total")

    def ledger(self) -> dict[str, tuple[str, int]]:
        """Return the text and the time of the last change, in nanoseconds, of each file of the ledger, by name."""
        found = {}
        # What ends in .new is being written.
        for file in sorted(self.node.path(f"{RUN}/ledger").glob("*.json")):
            with suppress(FileNotFoundError):  # its container has just ended
                found[file.name] = (file.read_text(encoding="utf-8"), file.stat().st_mtime_ns)
        return found

    def await_state(
        self, scope: str, state: str, timeout: float = _PATIENCE, *, container: Optional[str] = None
    ) -> None:
        """Wait until the daemon reports this state of a container: by its id where its scope does not tell that."""
        container = container or scope.partition("-")[2].partition(".")[0]
        try:
            until(lambda: self.total("gpuguard_container_info", container=container, state=state), timeout, "the state")
        except LabError as error:
            known = self.samples("gpuguard_container_info", container=container)
            said = self.output()[-3000:]
            raise LabError(f"{scope} is not {state} but {known}; the daemon said: {said}") from error

    def await_watched(self, cgroup: Path) -> None:
        """Wait until the sentinel hears of writes to a control group's list (cgroup v1), and can tell who writes."""
        file = cgroup / "devices.allow"
        until(lambda: marked_below(self.daemon.pid, file), _PATIENCE, f"the sentinel to watch {cgroup.name}")

    def await_rounds(self, count: int = 2) -> None:
        """Wait until the clock has made `count` more rounds, and for no less than they take when nothing is new.

        A round asks for looks, and ends before they do: what follows from it is for `until`. That nothing followed can
        be asserted after this: where there was something to do it would have been done.
        """
        target, earliest = self._rounds() + count, time.monotonic() + (count - 1) * self.pace
        until(lambda: self._rounds() >= target, _PATIENCE, f"{count} rounds of the clock")
        time.sleep(max(0.0, earliest - time.monotonic()))

    def await_reloads(self, count: float) -> None:
        """Wait until the daemon has seen `count` reloads of systemd since it started."""
        until(lambda: self.total("gpuguard_reloads_total") >= count, _PATIENCE, f"{count:g} reloads to be seen")

    def __exit__(self, *_: object) -> None:
        """Kill what daemon still runs, and forget what it learnt."""
        for daemon in self._daemons:
            daemon.kill()
        self.node.run(["rm", "-rf", RUN, self.config])

    def await_rest(self) -> None:
        """Wait until the clock makes rounds at its interval alone, which must be long, and no quick ones any more.

        But not for long: on cgroup v2 what others attach on this kernel brings rounds, too.
        """
        rounds, deadline = -1.0, time.monotonic() + _REST
        while rounds != self._rounds() and time.monotonic() < deadline:
            rounds = self._rounds()
            time.sleep(1.0)

    def _metrics(self) -> str:
        # While it reads its configuration again the endpoint is closed for a moment.
        until(self._serves, _PATIENCE, "the metrics")
        return self._text

    def _serves(self) -> bool:
        try:
            self._text = self._scrape()
        except (OSError, http.client.HTTPException):
            return False
        return True

    def _rounds(self) -> float:
        return self.total("gpuguard_source_events_total", source="clock")

    def _scrape(self) -> str:
        connection = http.client.HTTPConnection("localhost", timeout=_PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.sock.settimeout(_PATIENCE)
            connection.sock.connect(str(self.node.path(_SOCKET)))
            connection.request("GET", "/metrics")
            return connection.getresponse().read().decode()
        finally:
            connection.close()
