"""What systemd is said to write, and what its program on cgroup v2 lets through: lists of chance, on a real node."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import AsyncIterator, Sequence

import pytest

from gpuguard.errors import BusError
from gpuguard.guard.observe import SystemdObserver
from gpuguard.kernel import bpf
from gpuguard.kernel.procfs import Host
from gpuguard.model.accepted import accepted_code
from gpuguard.model.deviceallow import merge
from gpuguard.model.observation import Declared
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet, largest_rules
from gpuguard.model.unit import DeviceAllow
from gpuguard.systemd.codec import variant
from gpuguard.systemd.link import Link
from gpuguard.systemd.manager import MANAGER, SYSTEMD, SYSTEMD_PATH
from tests.lab.node import Node
from tests.lab.scope import Scope

ROUNDS = 60
RELOAD_EVERY = 10

GROUPS = (
    *("char-mem", "char-m[e]m", "char-{mem,pts}", "char-p*", "char-?", "char-[!a-z]*", "char-/dev/vc/0", "char-nosuch"),
    *("char-*", "block-*", "char-1", "char-195", "char-0195", "char-4095", "char-4096", "char-", "block-loop"),
)
PATHS = (
    *("/dev/null", "/dev/zero", "/dev/gone", "/dev", "/dev/pts", "/dev/lab-link", "/dev/lab-block", "/dev/char"),
    *("/dev/char/195:0", "/dev/char/1:3", "/dev/block/7:1", "/dev/char/195:*", "/dev/char/x", "/dev/char/+1:3"),
    *("/dev/char/4096:1", "/dev/char/1:1048576", "/dev/block/1:3", "/run/systemd/inaccessible/chr"),
)
ACCESSES = ("r", "w", "m", "rw", "rwm", "rm", "wm", "")


class Unit:
    """One scope whose list is set again and again."""

    def __init__(self, scope: Scope, address: str) -> None:
        self._scope = scope
        self._link = Link(address)
        node = scope.node
        self.observer = SystemdObserver(self._link, Host(node.path("/proc"), node.path("/dev")), str(node.path("/")))

    async def set(self, policy: str, entries: Sequence[tuple[str, str]]) -> None:
        """Replace policy and list; entries that systemd refuses are left out."""
        await self._send([["DevicePolicy", variant("s", policy)], ["DeviceAllow", variant("a(ss)", [])]])
        for entry in entries:
            with contextlib.suppress(BusError):
                await self._send([["DeviceAllow", variant("a(ss)", [list(entry)])]])

    async def _send(self, properties: list[list[object]]) -> None:
        bus = (await self._link.manager()).bus
        body = [self._scope.name, True, properties]
        await bus.call(SYSTEMD, SYSTEMD_PATH, MANAGER, "SetUnitProperties", "sba(sv)", body, timeout=30)

    async def declare(self, entries: Sequence[DeviceAllow]) -> None:
        """Send what gpuguard sends."""
        await (await self._link.manager()).allow_devices(self._scope.name, entries)

    async def declared(self) -> Declared:
        """Return what systemd is said to write."""
        group = str(self._scope.cgroup).partition("/sys/fs/cgroup")[2]
        view = await self.observer.view(self._scope.name, group)
        assert view.declared is not None, view.trouble
        return view.declared

    def written(self) -> RuleSet:
        """Return what systemd's program lets through; without one, all."""
        directory = os.open(self._scope.cgroup, os.O_RDONLY | os.O_DIRECTORY)
        try:
            programs = bpf.query(directory, effective=False)
        finally:
            os.close(directory)
        assert len(programs) <= 1
        return accepted_code(bpf.program(programs[0]).code) if programs else RuleSet(unrestricted=True)

    async def close(self) -> None:
        """Hang up."""
        await self._link.close()


@pytest.fixture
async def unit(node_v2: Node) -> AsyncIterator[Unit]:
    """Return a scope of a real node, with some nodes to name."""
    dev = node_v2.path("/dev")
    (dev / "lab-link").symlink_to("full")
    os.mknod(dev / "lab-block", 0o060600, os.makedev(7, 9))
    scope = node_v2.scope()
    made = Unit(scope, f"unix:path={node_v2.path('/run/dbus/system_bus_socket')}")
    yield made
    await made.close()
    scope.stop()
    for name in ("lab-link", "lab-block"):
        (dev / name).unlink()


def same(one: RuleSet, other: RuleSet) -> bool:
    """Whether two lists permit the same."""
    return one.unrestricted == other.unrestricted and largest_rules(one.rules) == largest_rules(other.rules)


@pytest.mark.invariant(2, 3)
async def test_the_next_program_is_foretold(unit: Unit, node_v2: Node) -> None:
    """Whatever policy and list: what is declared is what systemd's program accepts, also after gpuguard's own call.

    And that takes nothing: all that was declared before is accepted, and all that was sent.
    """
    for number in range(ROUNDS):
        choose = random.Random(number)  # noqa: S311  # a test's dice
        policy = choose.choice(("strict", "strict", "closed", "auto"))
        entries = [(choose.choice(GROUPS + PATHS), choose.choice(ACCESSES)) for _ in range(choose.randint(0, 6))]
        await unit.set(policy, entries)
        before = await unit.declared()
        context = f"{number}: {policy} {entries}"
        assert same(unit.written(), before.memory), context
        wanted = {_rule(choose) for _ in range(choose.randint(1, 4))}
        facts = unit.observer._facts(before.entries)
        sent, unspelt = merge(before.policy, before.entries, wanted, facts, disk=before.disk)
        if sent:
            await unit.declare(sent)
            after = unit.written()
            context += f" + {list(map(str, sent))}"
            assert not after.missing(before.memory.rules | wanted - set(unspelt)), context
            assert same(after, (await unit.declared()).memory), context
        if number % RELOAD_EVERY == 0:
            on_disk = await unit.declared()
            node_v2.run(["systemctl", "daemon-reload"])
            assert same(unit.written(), on_disk.disk if on_disk.disk is not None else on_disk.memory), context
            assert same(unit.written(), (await unit.declared()).memory), context


def _rule(choose: random.Random) -> Rule:
    major, minor = choose.choice((None, 1, 7, 136, 195, 510, 0)), choose.choice((None, 0, 1, 3, 255))
    return Rule(choose.choice("ccb"), major, minor, Access(choose.randint(1, int(Access.RWM))))
