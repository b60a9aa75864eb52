"""SimNode: the Python face of a simulated node. Everything here blocks until it is done."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Union, final

from dbus_next.signature import Variant

from tests.lab.daemon import Daemon
from tests.lab.errors import LabError
from tests.lab.machine import missing
from tests.lab.scope import BASICS, random_name
from tests.lab.sim import layout
from tests.lab.sim.connection import call_once, manager_call
from tests.lab.sim.faults import BusFault
from tests.lab.sim.scope import SimScope
from tests.lab.sim.tree import Write

ROOT = Path(__file__).resolve().parents[3]

# Keeps a process between Daemon and the program, where a real node has nsenter.
_WRAPPER = ["sh", "-c", '"$@"; exit $?', "sh"]

Setting = tuple[str, Variant]


def why_not() -> Optional[str]:
    """Say why this machine cannot have a simulated node, or return None when it can."""
    if sys.platform != "linux":
        return f"a simulated node needs Linux; this is {sys.platform}"
    return missing("dbus-daemon")


@final
class SimNode:
    """One simulated node, always cgroup v1. Get it by `SimNode.boot()`; it ends with `down()` or with this process.

    Triggers go to systemd as those of `systemctl` run by root do: no monitor of the bus sees them. With
    `visible=True` they go over the bus.
    """

    mode = "v1"

    def __init__(self, root: Path, process: subprocess.Popen[str]) -> None:
        self.root = root
        self.bus_address = layout.bus_address(root)
        self._process = process
        self._pids = itertools.count(1000)
        self._daemons: list[Daemon] = []

    @classmethod
    def boot(cls, *, gap: float = 0.0, services: int = 0) -> SimNode:
        """Start a node. `gap` is the time in s for which a deny-all lasts; `services` swell the storm of a reload.

        Raises LabError, with what it printed, when it does not come up.
        """
        reason = why_not()
        if reason is not None:
            raise LabError(f"cannot simulate a node: {reason}")
        # The path of a Unix socket has room for 107 bytes.
        root = Path(tempfile.mkdtemp(prefix="gpuguard-sim-", dir="/tmp"))
        with (root / "log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.lab.sim", str(root)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        node = cls(root, process)
        try:
            node._await_ready()
            node.control("set-gap", seconds=gap)
            for number in range(services):
                node.control("add-service", name=f"filler-{number}.service")
        except BaseException:
            node.down()
            raise
        return node

    def _await_ready(self) -> None:
        assert self._process.stdout
        if self._process.stdout.readline() != "ready\n":
            raise LabError(f"the simulated node did not come up:\n{self.log()}")

    def down(self) -> None:
        """Stop everything and remove the node's files."""
        for daemon in self._daemons:
            daemon.kill()
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        if self._process.returncode:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)  # the dbus-daemon that it could not end itself
        shutil.rmtree(self.root, ignore_errors=True)  # it has done so itself unless it failed

    def log(self) -> str:
        """Return what the node's process complained about."""
        return (self.root / "log").read_text()

    def path(self, inner: Union[str, Path]) -> Path:
        """Return where the node's file `inner` is."""
        return self.root / str(inner).lstrip("/")

    def config_paths(self) -> dict[str, str]:
        """Return the [paths] table that points gpuguard at this node."""
        return {
            "cgroup": str(self.path("/sys/fs/cgroup")),
            "proc": str(self.path("/proc")),
            "dev": str(self.path("/dev")),
            "run": str(self.path("/run/gpuguard")),
            "bus": self.bus_address,
            "root": str(self.root),
        }

    def daemon(self, argv: Sequence[Union[str, Path]], *, env: Optional[Mapping[str, str]] = None) -> Daemon:
        """Start a long-running program with the source tree as its directory, and keep its output."""
        started = Daemon(
            " ".join(map(str, argv)),
            lambda output: subprocess.Popen(
                [*_WRAPPER, *map(str, argv)],
                cwd=ROOT,
                env={**os.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            ),
        )
        self._daemons.append(started)
        return started

    def scope(
        self,
        name: Optional[str] = None,
        device_allow: Sequence[str] = BASICS,
        *,
        policy: str = "strict",
        hook_rules: Iterable[str] = (),
    ) -> SimScope:
        """Start a container's scope as runc does: first the scope, then its devices, then the hook's rules.

        `device_allow`: systemd's spelling, such as "/dev/char/195:0 rw". For a privileged container say
        policy="auto" and no devices.
        """
        name = name or random_name()
        pid = next(self._pids)
        start: list[Setting] = [
            ("Slice", Variant("s", "system.slice")),
            ("Delegate", Variant("b", True)),  # noqa: FBT003  # a D-Bus value
            ("PIDs", Variant("au", [pid])),
        ]
        self.call("StartTransientUnit", "ssa(sv)a(sa(sv))", name, "replace", _settings(start), [])
        scope = SimScope(self, name, f"/system.slice/{name}", pid)
        entries = [entry.split(" ") for entry in device_allow]
        devices = [("DevicePolicy", Variant("s", policy)), ("DeviceAllow", Variant("a(ss)", []))]
        if entries:
            devices.append(("DeviceAllow", Variant("a(ss)", entries)))
        self.call("SetUnitProperties", "sba(sv)", name, True, _settings(devices))  # noqa: FBT003  # a D-Bus value
        scope.write_rules(hook_rules)
        return scope

    def daemon_reload(self, *, visible: bool = False) -> None:
        """Make systemd read its files again and apply them."""
        if visible:
            self.call("Reload")
        else:
            self.control("reload")

    def daemon_reexec(self, *, visible: bool = False) -> None:
        """Make systemd start itself anew."""
        if visible:
            try:
                self.call("Reexecute")
            except BusFault as fault:
                if not fault.name.endswith(".NoReply"):  # the old process never answers
                    raise
        else:
            self.control("reexec")

    def set_property(self, unit: str, name: str, value: Variant, *, visible: bool = False) -> None:
        """Set one property of a unit at run time. Raises BusFault when systemd refuses."""
        if visible:
            self.call("SetUnitProperties", "sba(sv)", unit, True, _settings([(name, value)]))  # noqa: FBT003
        else:
            self.control("set-property", name=unit, properties=[(name, value.signature, value.value)])

    def busy(self, seconds: float) -> None:
        """Make systemd deaf for a while: what is asked meanwhile is answered late and in order."""
        self.control("busy", seconds=seconds)

    def stop_bus(self) -> None:
        """Kill dbus-daemon."""
        self.control("stop-bus")

    def start_bus(self) -> None:
        """Start dbus-daemon again, at the same address, and wait until systemd is back on it."""
        self.control("start-bus")

    def set_gap(self, seconds: float) -> None:
        """Change how long a deny-all lasts before the first allow."""
        self.control("set-gap", seconds=seconds)

    def writes(self) -> list[Write]:
        """Return every write to devices.allow and devices.deny so far, by systemd and by others."""
        return [Write(**record) for record in self.control("writes")]

    def refused(self) -> list[Write]:
        """Return the writes that a kernel would have answered with an error."""
        return [write for write in self.writes() if write.error]

    def calls(self) -> list[dict[str, Any]]:
        """Return the method calls that systemd got over the bus so far: sender, path, member, body."""
        calls: list[dict[str, Any]] = self.control("calls")
        return calls

    def call(self, member: str, signature: str = "", *body: Any) -> list[Any]:  # noqa: ANN401  # whatever the bus carries
        """Call systemd's Manager over the bus. Raises BusFault for an error reply."""
        return call_once(self.bus_address, manager_call(member, signature, body))

    def control(self, verb: str, **arguments: Any) -> Any:  # noqa: ANN401  # whatever the verb returns
        """Ask the node's process directly (see control.py). Raises BusFault, or LabError when it is gone."""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(str(self.root / layout.CONTROL))
                with connection.makefile("rw") as stream:
                    stream.write(json.dumps({"do": verb, "with": arguments}) + "\n")
                    stream.flush()
                    answer = json.loads(stream.readline())
        except (OSError, ValueError) as error:
            raise LabError(f"the simulated node does not answer ({error}); it said:\n{self.log()}") from error
        if "error" in answer:
            raise BusFault(answer["error"], answer["text"])
        return answer["result"]

    def __enter__(self) -> SimNode:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        """End it."""
        self.down()


def _settings(settings: Iterable[Setting]) -> list[list[Any]]:
    return [list(setting) for setting in settings]
