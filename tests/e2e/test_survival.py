"""Whatever happens to gpuguard, its ledger or the bus: nothing is lost, nothing is granted, and work resumes."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Callable

import pytest

from gpuguard.errors import GpuguardError
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.systemd.events import MONITOR, SIGNALS, UNITS
from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import RUN, Gpuguard
from tests.e2e.witness import Witness
from tests.lab import hook
from tests.lab.devices import GPU0, GPU1
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import Scope

KILLS = 8
STOPS = 30
STOLEN = f"{GPU1.rule} rw"  # what no scope here was ever given


def await_whole(guard: Gpuguard, scopes: Sequence[Scope], before: Sequence[frozenset[str]]) -> None:
    """Wait until every scope is protected; assert that it has the rules from before, no more, and no shield."""
    for scope, had in zip(scopes, before):
        guard.await_state(scope.name, "protected")
        until(lambda s=scope: not (s.cgroup / SHIELD).exists(), 20, "the shield to go")  # type: ignore[misc]
        assert gate.rules(scope.cgroup) == had


@pytest.mark.invariant(7)
def test_killed_while_giving_back(gpu_scope: MakeScope, launch: Launch) -> None:
    """Killed at a random moment around a loss, and started again, it gives back what was lost and nothing else."""
    scopes = [gpu_scope() for _ in range(3)]
    before = [gate.rules(scope.cgroup) for scope in scopes]
    guard = launch(backoff={"max_repairs": 1000}).start()
    await_whole(guard, scopes, before)
    for _ in range(KILLS):
        for scope in scopes:
            gate.take_away(scope.node, scope.name, GPU0)
        reload = guard.node.popen(["systemctl", "daemon-reload"])
        time.sleep(random.uniform(0, 0.3))  # noqa: S311  # not for secrets
        guard.daemon.kill()
        reload.communicate()
        guard.start()
        await_whole(guard, scopes, before)


@pytest.mark.invariant(2)
@pytest.mark.invariant(7)
def test_killed_while_declaring(gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """Killed at a random moment of declaring, and started again, it finishes; meanwhile no open fails."""
    scope = gpu_scope()
    before = gate.rules(scope.cgroup)
    guard = launch(backoff={"max_repairs": 1000}).start()
    await_whole(guard, [scope], [before])
    drop_in = guard.node.path(f"/run/systemd/transient/{scope.name}.d/50-DeviceAllow.conf")

    def declare() -> None:
        with suppress(GpuguardError, OSError):
            guard.repair(scope.name)

    with prober.loop(scope.cgroup, GPU0) as loop:
        for _ in range(KILLS):
            drop_in.unlink()
            request = threading.Thread(target=declare)
            request.start()
            time.sleep(random.uniform(0, 0.05))  # noqa: S311  # not for secrets
            guard.daemon.kill()
            request.join()
            guard.start()
            await_whole(guard, [scope], [before])
            until(drop_in.exists, 20, "the declaration")
        report = loop.stop()
    assert (report.denied, report.gaps, report.odd) == (0, (), {})


@pytest.mark.invariant(7)
def test_restart_remembers(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """What is lost while no gpuguard runs is given back at the next start, from the ledger."""
    scope = gpu_scope()
    guard = launch(guard={"declare": False}).start()
    guard.await_state(scope.name, "at-risk")
    assert guard.daemon.stop() == 0
    node.run(["systemctl", "daemon-reload"])
    assert prober.open(scope.cgroup, GPU0).denied
    guard.start()
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
    guard.await_state(scope.name, "protected")


@pytest.mark.cgroup("v1")
def test_a_shield_that_was_left_is_removed(gpu_scope: MakeScope, launch: Launch) -> None:
    """A shield that an earlier gpuguard left in a scope is gone after the start, also where nothing else is to do."""
    declared, fresh = gpu_scope(), gpu_scope()
    before = [gate.rules(declared.cgroup), gate.rules(fresh.cgroup)]
    guard = launch(scopes={"exclude": [fresh.name]}).start()
    await_whole(guard, [declared], before)
    guard.daemon.kill()
    for scope in (declared, fresh):
        (scope.cgroup / SHIELD).mkdir()
    guard.configure()
    guard.start()
    await_whole(guard, [declared, fresh], before)
    assert guard.total("gpuguard_repairs_total") == 1, "only the fresh one is declared"


def stopped_while_declaring(guard: Gpuguard, gpu_scope: MakeScope) -> tuple[Scope, frozenset[str]]:
    """Return a scope under the shield, with the rules from before, while systemd and the daemon are stopped.

    The shield is there for some milliseconds: on a busy machine that is missed, and tried again.
    """
    systemd, daemon = guard.node.init, guard.daemon.pid
    for _ in range(STOPS):
        scope = gpu_scope()
        before, shield, deadline = gate.rules(scope.cgroup), scope.cgroup / SHIELD, time.monotonic() + 20
        while not shield.exists() and time.monotonic() < deadline:
            pass
        for pid in (systemd, daemon):
            os.kill(pid, signal.SIGSTOP)
        until(lambda: stopped(systemd) and stopped(daemon), 20, "both to stop")
        if shield.exists():
            return scope, before
        os.kill(systemd, signal.SIGCONT)
        os.killpg(os.getpgid(daemon), signal.SIGCONT)  # nsenter, which waits for it, has stopped with it
        guard.await_state(scope.name, "protected")
    pytest.fail("the shield was never met")


def stopped(pid: int) -> bool:
    """Whether a process is stopped."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "T"


@pytest.mark.cgroup("v1")
@pytest.mark.invariant(2)
@pytest.mark.invariant(7)
def test_killed_under_the_shield(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """Killed between its call and systemd's answer, it leaves a shield that harms nobody and goes at the next start."""
    guard = launch().start()
    scope, before = stopped_while_declaring(guard, gpu_scope)
    shield = scope.cgroup / SHIELD
    try:
        guard.daemon.kill()
        assert shield.exists()
        assert gate.rules(scope.cgroup) == before
        hook.allow(scope.cgroup, GPU1)
    finally:
        os.kill(node.init, signal.SIGCONT)
    node.run(["systemctl", "daemon-reload"])  # which comes after what it was told
    assert prober.open(scope.cgroup, GPU0).allowed
    assert prober.open(scope.cgroup, GPU1).allowed
    assert shield.exists()
    guard.start()
    guard.await_state(scope.name, "protected")
    until(lambda: not shield.exists(), 20, "the shield to go")
    assert prober.open(scope.cgroup, GPU0).allowed


def forged(**changes: object) -> Callable[[Path], None]:
    """Return what makes a ledger entry claim GPU1 as well, with some other value changed."""

    def forge(path: Path) -> None:
        document: dict[str, Any] = json.loads(path.read_text())
        document["rules"].append(STOLEN)
        path.write_text(json.dumps({**document, **changes}))

    return forge


def link(path: Path) -> None:
    """Put a link to a file that claims GPU1 in the entry's place."""
    elsewhere = path.with_name("elsewhere")
    forged()(path)
    path.rename(elsewhere)
    path.symlink_to(elsewhere.name)


def replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    """Return what removes the entry and makes something else in its place."""

    def replace(path: Path) -> None:
        path.unlink()
        make(path)

    return replace


DAMAGES: dict[str, Callable[[Path], object]] = {
    "garbage": lambda path: path.write_bytes(os.urandom(300)),
    "empty": lambda path: path.write_bytes(b""),
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "huge": lambda path: path.write_bytes(b" " * (2 << 20) + path.read_bytes()),
    "no object": lambda path: path.write_text(f'["{STOLEN}"]'),
    "another version": forged(version=2),
    "another boot": forged(boot="0b9f6f3c-8a3f-4d5c-9d3e-1f1b5c0c7a11"),
    "another inode": forged(inode=1),
    "another name": forged(control_group="/system.slice/docker-other.scope"),
    "another run": forged(invocation="00112233445566778899aabbccddeeff"),
    "a wildcard that is no rule": forged(rules=["c 195:* rwx"]),
    "a directory": replaced(Path.mkdir),
    "a pipe": replaced(os.mkfifo),
    "a link": link,
}


@pytest.mark.invariant(1)
def test_damaged_ledger_grants_nothing(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """Whatever stands in the ledger's files, no scope gets what it did not have, and each is guarded as before."""
    scopes = {name: gpu_scope() for name in DAMAGES}
    before = {name: gate.rules(scope.cgroup) for name, scope in scopes.items()}
    guard = launch(backoff={"max_repairs": 1000}).start()
    await_whole(guard, list(scopes.values()), list(before.values()))
    guard.daemon.stop()
    for name, damage in DAMAGES.items():
        entry = node.path(f"{RUN}/ledger/{scopes[name].cgroup.stat().st_ino}.json")
        damage(entry)

    guard.start()
    await_whole(guard, list(scopes.values()), list(before.values()))
    status = guard.status()
    assert {name: [device["device"] for device in status[scope.name]["devices"]] for name, scope in scopes.items()} == {
        name: [GPU0.rule] for name in DAMAGES
    }
    for scope in scopes.values():
        gate.take_away(scope.node, scope.name, GPU0)
    for name, scope in scopes.items():
        until(lambda n=name, s=scope: gate.rules(s.cgroup) == before[n], 20, f"the repair after {name}")  # type: ignore[misc]
    assert prober.open(scopes["a link"].cgroup, GPU1).denied


def test_second_daemon_refuses(gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """A second daemon on the node ends with a message that says why, and the first one works on."""
    scope = gpu_scope()
    guard = launch().start()
    guard.await_state(scope.name, "protected")
    first = guard.daemon
    second = guard.spawn()
    gate.take_away(scope.node, scope.name, GPU0)
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
    assert second.wait(60) == 1
    assert "another gpuguard is at work on this node" in second.output()
    assert first.returncode is None
    guard.await_state(scope.name, "protected")
    first.kill()


def test_restart_of_the_bus(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """When dbus-daemon is restarted the daemon repairs, comes back to the bus, and sees the next reload at once."""
    scope = gpu_scope()
    guard = launch(guard={"declare": False, "poll_interval": "30s"}).start()
    guard.await_state(scope.name, "at-risk")
    until(lambda: sources_up(guard) == 3, 20, "the sources")

    node.run(["systemctl", "restart", "dbus.service"])
    until(lambda: len(guard.events("source_up")) >= 3, 60, "the return of the sources")
    guard.await_rest()

    node.run(["systemctl", "daemon-reload"])
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
    guard.await_state(scope.name, "protected")


@pytest.mark.cgroup("v1")
def test_without_a_bus(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """Without any bus the poll sees losses and the kernel's list is written; the state says that systemd is unknown."""
    scope = gpu_scope()
    guard = launch(paths={"bus": "unix:path=/run/nowhere"}).start()
    guard.await_state(scope.name, "at-risk")
    for _ in range(2):
        node.run(["systemctl", "daemon-reload"])
        until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
        guard.await_rounds()
    assert sources_up(guard) == 0
    until(lambda: guard.total("gpuguard_repairs_total", method="write", result="ok") >= 2, 20, "both to be counted")
    assert "systemd" in guard.status()[scope.name]["reason"]
    assert not (scope.cgroup / SHIELD).exists()
    assert prober.open(scope.cgroup, GPU1).denied


@pytest.mark.cgroup("v2")
@pytest.mark.invariant(4)
def test_without_a_bus_on_v2(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """On v2 nothing can be given back without a bus: a loss is told, nothing is touched; with the bus it is mended."""
    scope = gpu_scope()
    guard = launch(paths={"bus": "unix:path=/run/nowhere"}).start()
    guard.await_state(scope.name, "at-risk")
    with Witness([scope.cgroup]) as witness:
        node.run(["systemctl", "daemon-reload"])
        guard.await_state(scope.name, "lost")
        guard.await_rounds()
        assert witness.strangers(node.init) == []
    assert guard.total("gpuguard_repairs_total") == 0
    guard.daemon.stop()
    guard.configure()
    guard.start()
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
    guard.await_state(scope.name, "protected")


def test_reexec_keeps_the_sources(node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober) -> None:
    """After a daemon-reexec new containers are still found and reloads still seen, without a poll."""
    guard = launch(guard={"declare": False, "poll_interval": "1m"}).start()
    until(lambda: sources_up(guard) == 3, 20, "the sources")
    node.run(["systemctl", "daemon-reexec"])
    guard.await_reloads(1)
    until(lambda: sources_up(guard) == 3, 20, "the sources")
    guard.await_rest()
    scope = gpu_scope()
    guard.await_state(scope.name, "at-risk")
    guard.await_rest()
    node.run(["systemctl", "daemon-reload"])
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
    guard.await_state(scope.name, "protected")


def sources_up(guard: Gpuguard) -> float:
    """Return how many of the three sources on the bus work."""
    return sum(guard.total("gpuguard_source_up", source=name) for name in (SIGNALS, UNITS, MONITOR))
