"""Deeds: writing rules back and declaring them, and what is said of it afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from gpuguard.errors import BusUnavailableError, CgroupGoneError
from gpuguard.guard.mend import Mender, Target
from gpuguard.kernel.devices_v1 import SHIELD, DevicesV1
from gpuguard.model.rule import Rule
from gpuguard.model.unit import DeviceAllow
from gpuguard.systemd import manager as systemd
from gpuguard.systemd.link import Link
from tests.guard.account import Account
from tests.guard.conftest import patient
from tests.kernel.groups import Groups
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope
from tests.model.looks import rules
from tests.report.support import until

GPU0, GPU1, NULL = "c 195:0 rw", "c 195:1 rw", "c 1:3 rwm"
RULES = (Rule.parse(GPU0), Rule.parse(GPU1))
ENTRIES = tuple(DeviceAllow(f"/dev/char/195:{minor}", RULES[0].access) for minor in (0, 1))
NO_BUS = "unix:path=/nonexistent/bus"
BUSY = 4.0  # seconds; the test's own turn may come late, too


def target_of(groups: Groups) -> Target:
    """Return the scope of a tree as the target that it is."""
    return Target(groups.scope.rpartition("/")[2], groups.scope, groups.inode(groups.scope), groups.scope)


class TestWrite:
    """Writing lost rules back."""

    async def test_is_read_back(self, kernel: Groups) -> None:
        """What is in the kernel's list afterwards is a success."""
        kernel.make(kernel.scope, NULL)
        deed = await Mender(kernel.devices, Link(NO_BUS)).write(target_of(kernel), RULES)
        assert (deed.method, deed.error, deed.result, deed.answered) == ("write", None, "ok", True)
        assert 0 < deed.seconds < 60
        assert kernel.lines(kernel.scope) == [NULL, GPU0, GPU1]

    async def test_one_refusal_does_not_hinder_the_others(self, kernel: Groups) -> None:
        """What the ancestors deny is told by rule and ancestor; what they allow is written."""
        kernel.make(kernel.slice, NULL, GPU1)
        kernel.make(kernel.scope, NULL)
        deed = await Mender(kernel.devices, Link(NO_BUS)).write(target_of(kernel), RULES)
        assert deed.result == "failed"
        assert deed.error == f"{kernel.scope}: cannot allow 'c 195:0 rw': its ancestor {kernel.slice} denies it"
        assert kernel.lines(kernel.scope) == [NULL, GPU1]

    @pytest.mark.invariant(3)
    async def test_a_write_that_changed_nothing_is_a_failure(self, tree: Groups) -> None:
        """A write that is accepted but not to be seen in the list is no repair."""
        deed = await Mender(tree.devices, Link(NO_BUS)).write(target_of(tree), RULES)
        assert deed.error == f"{tree.scope}: written, but not in force: c 195:0 rw, c 195:1 rw"

    async def test_a_scope_that_is_gone(self, tree: Groups) -> None:
        """A scope that ended, or a namesake, is not written."""
        target = target_of(tree)
        (tree.path(tree.scope)).rename(tree.path(tree.scope + ".old"))
        with pytest.raises(CgroupGoneError):
            await Mender(tree.devices, Link(NO_BUS)).write(target, RULES)


class Declaring:
    """A mender, a container on a simulated node with two GPUs, and its target."""

    def __init__(self, node: SimNode, link: Link) -> None:
        self.node = node
        self.scope: SimScope = node.scope(hook_rules=[GPU0, GPU1])
        self.link = link
        self.devices = DevicesV1(node.path("/sys/fs/cgroup/devices"))
        self.mender = Mender(self.devices, link)
        self.target = Target(self.scope.name, self.scope.group, self.scope.cgroup.stat().st_ino, self.scope.group)

    def shielded(self) -> bool:
        """Whether there is a shield."""
        return (self.scope.cgroup / SHIELD).is_dir()


@pytest.fixture
async def it(sim: SimNode, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Declaring]:
    """Return a mender and a container of a simulated node."""
    patient(monkeypatch)
    link = Link(sim.bus_address)
    yield Declaring(sim, link)
    await link.close()


class TestDeclare:
    """Making systemd remember."""

    @pytest.mark.invariant(2)
    async def test_takes_nothing_away(self, it: Declaring) -> None:
        """The entries are sent, systemd's deny-all is refused, every rule stays, and the shield is gone."""
        it.scope.write_rules(["c 10:200 rwm"])
        before, account = it.scope.rules(), Account(it.node, it.scope)
        deed = await it.mender.declare(it.target, ENTRIES)
        assert (deed.method, deed.error, deed.answered) == ("declare", None, True)
        assert account.declared() == [["/dev/char/195:0 rw", "/dev/char/195:1 rw"]]
        assert "deny a" not in account.by_systemd()
        assert it.scope.rules() == before
        assert not it.shielded()

    async def test_a_shield_that_is_there_for_good_stays(self, it: Declaring) -> None:
        """Where the shield is to be kept, a declaration goes on under it and leaves it standing."""
        it.devices.shield(it.target.control_group, it.target.inode)
        made = (it.scope.cgroup / SHIELD).stat()
        deed = await it.mender.declare(it.target, ENTRIES, keep=True)
        assert (deed.error, deed.answered) == (None, True)
        assert (it.scope.cgroup / SHIELD).stat().st_ctime_ns == made.st_ctime_ns

    @pytest.mark.invariant(2)
    async def test_a_rule_that_is_written_meanwhile_survives(self, it: Declaring) -> None:
        """What a hook writes while systemd is busy with the call is still there afterwards."""
        it.node.busy(BUSY)
        declaring = asyncio.ensure_future(it.mender.declare(it.target, ENTRIES))
        await until(it.shielded)
        await asyncio.to_thread(it.scope.write_rules, ["c 195:255 rw"])
        assert (await declaring).error is None
        assert it.scope.rules().covers(Rule.parse("c 195:255 rw"))

    @pytest.mark.invariant(2)
    async def test_an_answer_that_is_outstanding_keeps_the_shield(
        self, it: Declaring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Without an answer in time systemd may yet rewrite the list: the shield stays until it has answered."""
        monkeypatch.setattr(systemd, "DECLARE_TIMEOUT", 0.1)
        before, account = it.scope.rules(), Account(it.node, it.scope)
        it.node.busy(BUSY)
        deed = await it.mender.declare(it.target, ENTRIES)
        assert deed.error is not None
        assert "systemd's answer is outstanding" in deed.error
        assert (deed.answered, deed.result) == (False, "failed")
        assert it.shielded()
        assert await it.mender.remove_left_shield(it.target)
        assert not it.shielded()
        assert account.declared() == [["/dev/char/195:0 rw", "/dev/char/195:1 rw"]]
        assert it.scope.rules() == before

    @pytest.mark.invariant(2)
    async def test_without_a_bus_the_shield_stays(self, it: Declaring) -> None:
        """When the connection cannot be had it is unknown what systemd was told before: the shield stays."""
        it.node.stop_bus()
        deed = await it.mender.declare(it.target, ENTRIES)
        assert not deed.answered
        assert it.shielded()
        with pytest.raises(BusUnavailableError):
            await it.mender.remove_left_shield(it.target)
        assert it.shielded()

    @pytest.mark.invariant(2)
    async def test_a_declaration_that_is_cancelled_keeps_the_shield(self, it: Declaring) -> None:
        """A guard that is stopped in the middle leaves the shield up, and the next one takes it down."""
        before = it.scope.rules()
        it.node.busy(BUSY)
        declaring = asyncio.ensure_future(it.mender.declare(it.target, ENTRIES))
        await until(it.shielded)
        declaring.cancel()
        await asyncio.wait([declaring])
        assert it.shielded()
        assert await it.mender.remove_left_shield(it.target)
        assert not it.shielded()
        assert it.scope.rules() == before

    async def test_a_refusal_is_told(self, it: Declaring) -> None:
        """What systemd refuses is an error with its reason, and the shield is gone."""
        deed = await it.mender.declare(it.target, (DeviceAllow("/home/x", RULES[0].access),))
        assert deed.error is not None
        assert "systemd refuses: " in deed.error
        assert "DeviceAllow= requires device node or pattern" in deed.error
        assert deed.answered
        assert not it.shielded()

    @pytest.mark.invariant(3)
    async def test_what_is_missing_afterwards_is_a_failure(
        self, it: Declaring, tree: Groups, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A good answer of systemd proves nothing: a rule that is gone from the list afterwards is told."""
        (tree.path(tree.scope) / "devices.list").write_text(f"{NULL}\n{GPU0}\n")
        target = Target(it.scope.name, tree.scope, tree.inode(tree.scope), tree.scope)
        it.node.busy(BUSY)
        monkeypatch.undo()  # nothing will come
        declaring = asyncio.ensure_future(Mender(tree.devices, it.link).declare(target, ENTRIES))
        await until(lambda: tree.devices.shielded(tree.scope))
        (tree.path(tree.scope) / "devices.list").write_text(f"{GPU0}\n")
        deed = await declaring
        assert deed.error == f"{tree.scope}: not in force after declaring: c 1:3 rwm"
        assert deed.answered

    @pytest.mark.invariant(3)
    async def test_what_was_to_come_back_and_did_not_is_a_failure(self, it: Declaring) -> None:
        """Where systemd alone can give back, as on cgroup v2: what it was told for must be in force afterwards."""
        lost = rules("c 195:7 rw")
        deed = await it.mender.declare(it.target, ENTRIES, lost)
        assert deed.error == f"{it.target.control_group}: not in force after declaring: c 195:7 rw"
        assert (await it.mender.declare(it.target, ENTRIES, RULES)).error is None

    async def test_a_shield_that_somebody_uses(self, it: Declaring) -> None:
        """A shield that cannot be removed is told; the declaration stands."""
        it.node.busy(BUSY)
        declaring = asyncio.ensure_future(it.mender.declare(it.target, ENTRIES))
        await until(it.shielded)
        (it.scope.cgroup / SHIELD / "child").mkdir()
        deed = await declaring
        assert deed.error == f"{it.scope.group}: cannot remove the shield: Directory not empty"
        assert deed.answered

    async def test_not_for_a_namesake(self, it: Declaring) -> None:
        """A scope with another inode gets no shield, and systemd hears nothing."""
        account = Account(it.node, it.scope)
        with pytest.raises(CgroupGoneError):
            await it.mender.declare(Target(it.scope.name, it.scope.group, it.target.inode + 1, it.scope.group), ENTRIES)
        assert not it.shielded()
        assert account.calls() == []

    async def test_a_shield_is_only_removed_where_there_is_one(self, it: Declaring) -> None:
        """Without a shield nobody is asked anything."""
        it.node.stop_bus()
        assert not await it.mender.remove_left_shield(it.target)

    async def test_no_entries_are_an_error_of_ours(self, it: Declaring) -> None:
        """An empty list would clear what systemd has: it is never sent."""
        account = Account(it.node, it.scope)
        with pytest.raises(ValueError, match="systemd would clear its DeviceAllow list"):
            await it.mender.declare(it.target, ())
        assert account.calls() == []
        assert it.scope.rules().covers(RULES[0])
