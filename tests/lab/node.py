"""A throw-away node: a real systemd with D-Bus and journald, in namespaces of its own. Needs root.

Nothing of the machine is changed: the node works on an overlay of its root file system. It shares the network, the
clock and the kernel with the machine, so that two nodes cannot listen on one port.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Optional, Union

from tests.lab import supervision
from tests.lab.cgroups import entering, membership
from tests.lab.daemon import Daemon
from tests.lab.errors import LabError
from tests.lab.keeper import GRACE
from tests.lab.machine import why_not
from tests.lab.poll import until
from tests.lab.process import Process
from tests.lab.record import Record, load
from tests.lab.scope import BASICS, Scope, random_name
from tests.lab.stage import PATH
from tests.lab.supervision import BOOT, ROOT

__all__ = ["ROOT", "Node"]

_ENVIRONMENT = {"container": "lab", "HOME": "/root", "LANG": "C.UTF-8", "PATH": PATH, "PYTHONDONTWRITEBYTECODE": "1"}

Argv = Sequence[Union[str, Path]]


class Node(AbstractContextManager["Node"]):
    """One node. Get it by `Node.boot()`; it ends with `down()`, with its `with` block, or with this process."""

    def __init__(self, record: Record, keeper: Optional[subprocess.Popen[bytes]] = None) -> None:
        self.name = record.name
        self.mode = record.mode
        self.hierarchies = record.hierarchies
        self._record = record
        self._keeper = keeper
        self._init: Optional[Process] = None
        self._daemons: list[Daemon] = []

    @classmethod
    def boot(cls, mode: str = "v1", rootfs: str = "/", *, name: Optional[str] = None, keep: bool = False) -> Node:
        """Boot a node of cgroup mode "v1" or "v2" from an overlay of `rootfs`, and wait until it is ready.

        With `keep` it outlives this process, until someone calls `down`. Raises LabError, with the tail of the
        console, when the machine cannot or the node does not come up.
        """
        reason = why_not(mode)
        if reason is not None:
            raise LabError(f"cannot boot a node: {reason}")
        supervision.reap()
        name = name or f"{mode}-{os.getpid()}-{secrets.token_hex(3)}"
        keeper = supervision.start(name, mode, rootfs, keep=keep)
        try:
            node = cls(supervision.await_record(name, keeper), keeper)
            node._await_systemd()
            for tree in _unseen(rootfs):
                node.share(tree, tree)
        except BaseException:
            if keeper.poll() is None:
                supervision.end(keeper)
            raise
        return node

    @classmethod
    def find(cls, name: str) -> Node:
        """Return the running node of this name. Raises LabError when there is none."""
        record = load(name)
        if record is None:
            raise LabError(f"there is no node named {name!r} (python -m tests.lab list)")
        return cls(record)

    @property
    def init(self) -> int:
        """The node's PID 1, by its number outside. Raises LabError when the node does not run."""
        if self._init is None or not self._init.alive():
            self._init = self._record.init()
        if self._init is None:
            raise LabError(f"node {self.name} does not run; its console ends:\n{self.console()}")
        return self._init.pid

    def command(self, argv: Argv, *, env: Optional[Mapping[str, str]] = None) -> list[str]:
        """Return the command that, run outside, runs a program in the node: beside its PID 1, as `docker exec` does."""
        init = self.init
        spaces = ["--mount", "--uts", "--ipc", "--pid", "--cgroup", "--root", "--wd"]
        environment = [f"{key}={value}" for key, value in {**_ENVIRONMENT, **(env or {})}.items()]
        program = ["nsenter", f"--target={init}", *spaces, "--", "env", "-i", *environment, *map(str, argv)]
        beside = membership(Path(f"/proc/{init}/cgroup").read_text(encoding="utf-8"))
        groups = [
            self._controller(hierarchy.mount_name) / beside[hierarchy.controllers][len(hierarchy.directory) + 1 :]
            for hierarchy in self.hierarchies
        ]
        return entering(groups, program)

    def popen(
        self,
        argv: Argv,
        *,
        env: Optional[Mapping[str, str]] = None,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[bytes]:
        """Start a program in the node, with an environment of the node's and `env` on top.

        The process returned is nsenter, in one process group with the program; it ends as the program ends.
        """
        return subprocess.Popen(
            self.command(argv, env=env), stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True
        )

    def run(
        self,
        argv: Argv,
        *,
        check: bool = True,
        timeout: float = 60.0,
        env: Optional[Mapping[str, str]] = None,
        stdin: bytes = b"",
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in the node to its end and return what it printed.

        Raises LabError when it does not end in `timeout` seconds (it is killed) or, with `check`, when it fails.
        """
        process = self.popen(argv, env=env, stdin=subprocess.PIPE)
        command = " ".join(map(str, argv))
        try:
            output, complaint = process.communicate(stdin, timeout)
        except subprocess.TimeoutExpired as error:
            raise LabError(f"{command!r} in node {self.name} did not end within {timeout} s") from error
        finally:
            if process.poll() is None:
                _kill_group(process)
        done = subprocess.CompletedProcess(
            list(map(str, argv)),
            process.returncode,
            output.decode(errors="replace"),
            complaint.decode(errors="replace"),
        )
        if check and done.returncode:
            said = (done.stderr.strip() or done.stdout.strip())[-2000:]
            raise LabError(f"{command!r} in node {self.name} failed with status {done.returncode}: {said}")
        return done

    def daemon(self, argv: Argv, *, env: Optional[Mapping[str, str]] = None) -> Daemon:
        """Start a long-running program in the node, with the source tree as its directory, and keep its output."""
        started = Daemon(
            " ".join(map(str, argv)),
            lambda output: self.popen(["env", "-C", ROOT, *argv], env=env, stdout=output, stderr=output),
        )
        self._daemons.append(started)
        return started

    def scope(
        self, name: Optional[str] = None, device_allow: Sequence[str] = BASICS, *, policy: str = "strict"
    ) -> Scope:
        """Start a scope with a sleeping process in it, by default named and restricted as a container's is.

        `device_allow`: systemd's spelling, such as "/dev/char/195:0 rw".
        """
        return Scope(self, name or random_name(), device_allow, policy)

    def path(self, inner: Union[str, Path]) -> Path:
        """Return where the node's file `inner` is, seen from outside."""
        return Path(f"/proc/{self.init}/root") / str(inner).lstrip("/")

    def share(self, host_path: Path, inner_path: Union[str, Path]) -> None:
        """Show a directory (or file) of the machine in the node, read-only, with other mounts below it as they are."""
        supervision.tool(["tests.lab.share", str(self.init), str(host_path), str(inner_path)])

    def carried_out(self) -> None:
        """Wait until systemd has written what it was asked for: it answers a change of properties before it does so.

        What it is asked next it answers after that.
        """
        self.run(["systemctl", "show", "--property=Version"])

    def cgroup(self, unit: str, controller: str = "devices") -> Path:
        """Return a unit's cgroup directory, seen from outside. Raises LabError when the unit has none.

        On v2 there is one directory for all controllers.
        """
        group = self.run(["systemctl", "show", "--property=ControlGroup", "--value", unit]).stdout.strip()
        if not group:
            raise LabError(f"unit {unit} of node {self.name} has no control group: it does not run")
        return self._controller(controller) / group.lstrip("/")

    def _controller(self, name: str) -> Path:
        return self.path(f"/sys/fs/cgroup/{name if self.mode == 'v1' else ''}")

    def console(self, size: int = 4000) -> str:
        """Return the last `size` characters of what the node's systemd printed."""
        return self._record.console_tail(size)

    def down(self) -> None:
        """Remove the node: every process, mount, control group and file of it. Raises LabError when that fails."""
        keeper = self._record.keeper
        if self._keeper is not None:
            supervision.end(self._keeper)
        elif keeper.alive():
            os.kill(keeper.pid, signal.SIGTERM)
            until(lambda: not keeper.alive(), GRACE, f"the end of node {self.name}")
        if load(self.name) is not None:
            supervision.clear(self.name)
        for daemon in self._daemons:
            daemon.kill()

    def __exit__(self, *_: object) -> None:
        """Remove the node, however the block ends."""
        self.down()

    def _await_systemd(self) -> None:
        deadline = time.monotonic() + BOOT
        while time.monotonic() < deadline:
            if self._keeper is not None and self._keeper.poll() is not None:
                supervision.end(self._keeper)  # says why
            # The socket comes after PID 1 has left the root of its groups, which on v2 must be empty by then.
            if self._record.init() is not None and self.path("/run/systemd/private").exists():
                state = self.run(["systemctl", "is-system-running"], check=False).stdout.strip()
                if state in {"running", "degraded"}:
                    return
            time.sleep(0.05)
        raise LabError(f"node {self.name} did not come up within {BOOT:.0f} s; its console ends:\n{self.console()}")


def _unseen(rootfs: str) -> list[Path]:
    """Return what tests need in a node and an overlay of `rootfs` does not show: it shows one file system."""
    shown: list[Path] = []
    for tree in (ROOT, Path(sys.prefix), Path(sys.base_prefix)):
        if tree == Path("/usr"):  # the distribution's own Python: each root file system has one
            continue
        elsewhere = rootfs != "/" or tree.stat().st_dev != Path("/").stat().st_dev
        if elsewhere and not any(above in (tree, *tree.parents) for above in shown):
            shown.append(tree)
    return shown


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
