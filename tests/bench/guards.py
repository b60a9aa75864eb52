"""Who gives back what a container lost, each alone: the limits, the usual practice, gpuguard's layers. On cgroup v1."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional

from gpuguard.kernel import devices_v1
from tests.e2e.gpuguard import Gpuguard
from tests.lab.daemon import Daemon
from tests.lab.devices import GPU0
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.scope import BASICS, Scope

FIRST = "c *:0 rw"
"""A rule that systemd has no spelling for: gpuguard cannot declare it, so that each loss is like the first one."""
USUAL = f"{GPU0.rule} rw"

_SOURCE = Path(__file__).with_name("healer.c")
_TIMER = Path(__file__).with_name("timer.py")
_WITHOUT = Path(__file__).with_name("without.py")
_BINARY = "/root/healer"
_PATIENCE = 30.0
_NOWHERE = {"bus": "unix:path=/run/nowhere"}
# Losses come as fast as they can be measured; no rest in between.
TIRELESS = {"max_repairs": 1000, "window": "100ms"}
_CALM = {"poll_interval": "5s", "settle": "100ms"}

Start = Callable[[Node, Scope], "AbstractContextManager[Optional[int]]"]
"""Yields the process that guards, or that has started the one that does, by its number outside."""


@dataclass(frozen=True)
class Guard:
    """One who guards: `start` it for a scope that has `rule`.

    `heals`: what is lost comes back. `period`: of the timer that it lives by, in seconds.
    """

    name: str
    start: Start
    rule: str = FIRST
    heals: bool = True
    period: float = 0.0


def bare(_node: Node, _scope: Scope) -> AbstractContextManager[None]:
    """Nobody."""
    return nullcontext()


def why_no_compiler() -> str:
    """Say why the C program cannot be built here; empty when it can."""
    return "" if shutil.which("gcc") else "no gcc (Debian and Ubuntu: apt-get install gcc libc6-dev)"


def compiled(priority: str) -> Start:
    """Return who starts the C program; `priority`: rr, nice or normal. Raises LabError where it cannot be built."""

    @contextmanager
    def start(node: Node, scope: Scope) -> Iterator[int]:
        if not node.path(_BINARY).exists():
            _build(node)
        with node.daemon([_BINARY, priority, _inner(node, scope), FIRST]) as healer:
            healer.await_output("ready")
            yield healer.pid
            _lives(healer)

    return start


@contextmanager
def timer(node: Node, scope: Scope) -> Iterator[int]:
    """Start a re-applier on a timer of 1 s."""
    with node.daemon([sys.executable, "-I", _TIMER, "1", _inner(node, scope), FIRST]) as applier:
        applier.await_output("ready")
        yield applier.pid
        _lives(applier)


@contextmanager
def lone_sentinel(node: Node, scope: Scope) -> Iterator[int]:
    """Start the sentinel without a daemon."""
    group = f"/system.slice/{scope.name}"
    with node.daemon([sys.executable, "-m", "tests.bench.lone", group, FIRST]) as sentinel:
        sentinel.await_output("ready")
        yield sentinel.pid
        _lives(sentinel)


class Layered(Gpuguard):
    """gpuguard under a kernel that refuses a system call, if any: how a layer is switched off."""

    without = ""

    def spawn(self, *options: str) -> Daemon:
        """Start the daemon and do not wait for it."""
        program = [sys.executable, "-m", "gpuguard", "run", f"--config={self.config}", *options]
        if self.without:
            program = [sys.executable, str(_WITHOUT), self.without, *program]
        self._daemons.append(self.node.daemon(program))
        return self.daemon


def gpuguard(
    state: str, *, without: str = "", guard: Mapping[str, object] = _CALM, paths: Optional[Mapping[str, object]] = None
) -> Start:
    """Return who starts gpuguard with these settings and waits until it has the scope in `state`."""

    @contextmanager
    def start(node: Node, scope: Scope) -> Iterator[int]:
        tables = {"guard": {**_CALM, **guard}, "backoff": TIRELESS, "paths": paths or {}, "log": {"level": "info"}}
        layered = Layered(node, **tables)
        layered.without = without
        with layered:
            layered.start()
            layered.await_state(scope.name, state, _PATIENCE)
            if guard.get("shield"):
                until((scope.cgroup / devices_v1.SHIELD).exists, _PATIENCE, "the shield")
            layered.await_rest()  # the quick rounds after a container's start would see a loss sooner than usual
            yield layered.daemon.pid

    return start


def standing(pid: int) -> str:
    """Return the scheduling class of a process, and its nice level in the usual one."""
    policy = os.sched_getscheduler(pid) & ~os.SCHED_RESET_ON_FORK
    if policy == os.SCHED_OTHER:
        return f"nice {os.getpriority(os.PRIO_PROCESS, pid)}"
    return {os.SCHED_RR: "real time"}.get(policy, f"class {policy}")


NOBODY = Guard("no guard", bare, heals=False)
KNOWN = Guard("systemd knew the device from the start", bare, USUAL)
TIMER = Guard("a re-applier on a timer of 1 s", timer, period=1.0)
CLOCK = Guard(
    "gpuguard, the clock alone (5 s)", gpuguard("at-risk", without="fanotify_init", paths=_NOWHERE), period=5.0
)
SIGNALS = Guard("gpuguard, clock and D-Bus signals", gpuguard("at-risk", without="fanotify_init"))
SENTINEL = Guard("gpuguard, clock and sentinel", gpuguard("at-risk", paths=_NOWHERE))
ALONE = Guard("gpuguard's sentinel alone", lone_sentinel)
TOGETHER = Guard("gpuguard, all of it, a first loss", gpuguard("at-risk"))
DECLARED = Guard("gpuguard, declared before", gpuguard("protected"), USUAL)
SHIELD = Guard("gpuguard, permanent shield alone", gpuguard("at-risk", guard={"shield": True, "declare": False}), USUAL)


def scope_for(node: Node, guard: Guard) -> Scope:
    """Start a scope with the guard's rule; systemd knows it only for the limit."""
    if guard is KNOWN:
        return node.scope(device_allow=[*BASICS, f"/dev/char/{GPU0.major}:{GPU0.minor} rw"])
    scope = node.scope()
    (scope.cgroup / "devices.allow").write_text(guard.rule, encoding="ascii")
    return scope


def _inner(node: Node, scope: Scope) -> str:
    return "/" + str(scope.cgroup.relative_to(node.path("/")))


def _build(node: Node) -> None:
    why = why_no_compiler()
    if why:
        raise LabError(f"the C program cannot be built: {why}")
    with tempfile.TemporaryDirectory() as directory:
        binary = Path(directory) / "healer"
        done = subprocess.run(
            ["gcc", "-O2", "-o", str(binary), str(_SOURCE)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise LabError(f"the C program cannot be built: {done.stderr}")
        shutil.copy(binary, node.path(_BINARY))


def _lives(daemon: Daemon) -> None:
    if daemon.returncode is not None:
        raise LabError(f"a healer has ended by itself: {daemon.output()}")
