"""One script, on a real systemd and on the fake one: what they answer, signal and write must be the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.observer import Observer, Sight, Target
from tests.e2e.script import STEPS
from tests.lab.daemon import Daemon
from tests.lab.node import Node
from tests.lab.sim.api import VERSION
from tests.lab.sim.node import SimNode, why_not
from tests.lab.sim.scope import SimScope

MAJOR = VERSION.split(".", maxsplit=1)[0]
SCOPE = "conformance-1.scope"


async def _play(target: Target) -> dict[str, Sight]:
    observer = await Observer.start(target, SCOPE)
    try:
        return {name: await observer.see(step) for name, step in STEPS.items()}
    finally:
        await observer.close()


def _played(target: Target) -> dict[str, Sight]:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _play(target)).result()


@pytest.fixture(scope="module")
def real(node_v1: Node) -> dict[str, Sight]:
    """Return what the script shows on a real node."""
    version = node_v1.run(["systemctl", "--version"]).stdout.split()[1]
    if version != MAJOR:
        pytest.skip(f"the fake is systemd {MAJOR}; this machine's is {version}")
    root = node_v1.path("/")
    processes: list[Daemon] = []

    def write(group: str, verb: str, rule: str) -> None:
        (root / f"sys/fs/cgroup/devices{group}/devices.{verb}").write_text(rule)

    def spawn() -> int:
        processes.append(node_v1.daemon(["sleep", "infinity"]))
        status = Path(f"/proc/{processes[-1].pid}/status").read_text()
        return int(status.partition("NSpid:")[2].splitlines()[0].split()[-1])

    def end() -> None:
        processes[-1].kill()

    address = f"unix:path={root}/run/dbus/system_bus_socket"
    try:
        return _played(Target(address, root, write, spawn, end))
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def simulated() -> Iterator[dict[str, Sight]]:
    """Return what the script shows on a simulated node."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with SimNode.boot() as node:
        scope = SimScope(node, SCOPE, f"/system.slice/{SCOPE}", 4711)

        def write(_group: str, verb: str, rule: str) -> None:
            scope.write_rules([rule], verb)

        yield _played(Target(node.bus_address, node.root, write, lambda: scope.pid, scope.stop))


@pytest.mark.parametrize("step", STEPS)
def test_the_fake_does_what_systemd_does(step: str, real: dict[str, Sight], simulated: dict[str, Sight]) -> None:
    """After each step the device list, the properties, the reply and the signals are those of a real node."""
    assert simulated[step] == real[step]
