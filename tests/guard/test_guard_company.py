"""The guard and others: those who fight it, namesakes, ancestors that deny; and its own end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.guard import mend
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.model.cause import SYSTEMD, Cause
from gpuguard.model.state import State
from tests.guard.account import Account
from tests.guard.conftest import Station
from tests.guard.post import Post
from tests.kernel.groups import Groups
from tests.lab.scope import BASICS
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0, GPU1, CTL = "c 195:0 rw", "c 195:1 rw", "c 195:255 rw"
ENTRY = "/dev/char/195:0 rw"
PATIENT = {"max_repairs": 1000}
NOT_BEFORE_A_LOSS = {"guard": {"declare": False}}


class TestOthers:
    """Others that write, use or take what is the guard's."""

    @pytest.mark.invariant(8)
    async def test_two_that_fight_end_in_a_pause(self, sim: SimNode, station: Station) -> None:
        """Somebody who takes away at once what is given back is told of, and repairs pause; then they go on."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"backoff": {"max_repairs": 3, "window": "1m", "pause": "5s"}})
        await post.becomes(scope, State.PROTECTED)
        account = Account(sim, scope)
        fighting = asyncio.ensure_future(_take_away_again_and_again(scope))
        try:
            await post.until(lambda: post.events("fight"), "the fight was not told")
            assert account.written().count(f"allow {GPU0}") <= 3
            assert post.state(scope) is State.LOST
            assert post.value("gpuguard_repairs_total", method="write", result="refused") >= 1
        finally:
            fighting.cancel()
        await post.becomes(scope, State.PROTECTED)
        await post.until(lambda: post.events("fight_over"), "the end of the fight was not told")
        assert [len(post.events(kind)) for kind in ("fight", "fight_over")] == [1, 1]
        assert GPU0 in scope.rules().text()

    async def test_observe_mode_touches_nothing(self, sim: SimNode, station: Station) -> None:
        """In observe mode a loss is seen and told, and what would have been done; nothing is written or called."""
        scope = sim.scope(hook_rules=[GPU0])
        account = Account(sim, scope)
        post = await station(sim, enforce=False)
        await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        sim.daemon_reload()
        await post.becomes(scope, State.LOST)
        await post.rounds(3)
        assert (account.written(), account.declared()) == ([], [])
        assert not (scope.cgroup / SHIELD).exists()
        assert [kind for kind in post.kinds() if kind in {"lost", "observed"}] == ["observed", "lost", "observed"]

    async def test_a_shield_that_was_left_behind_is_removed(self, sim: SimNode, station: Station) -> None:
        """What a guard that was killed left up is taken down by the next one, also of a container without a plan."""
        scope = sim.scope(device_allow=[*BASICS, ENTRY])
        (scope.cgroup / SHIELD).mkdir()
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        await post.until(lambda: not (scope.cgroup / SHIELD).exists(), "the shield was not removed")
        assert GPU0 in scope.rules().text()

    async def test_a_shield_that_somebody_uses_does_not_end_the_guard(self, sim: SimNode, station: Station) -> None:
        """A shield that cannot be removed is told once, and the container is guarded all the same."""
        scope = sim.scope(hook_rules=[GPU0])
        (scope.cgroup / SHIELD / "child").mkdir(parents=True)
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        scope.write_rules([GPU0], verb="deny")
        await post.until(lambda: post.events("repaired"), "the loss was not repaired")
        assert GPU0 in scope.rules().text()
        complaints = [entry for entry in post.log if "cannot remove the shield" in entry["event"]]
        assert len(complaints) <= 3
        (scope.cgroup / SHIELD / "child").rmdir()

    @pytest.mark.invariant(5)
    async def test_a_namesake_inherits_nothing(self, sim: SimNode, station: Station) -> None:
        """A new container under the name of one that ended has what its own runtime gave it, and no more."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        inode = post.of(scope).target.inode
        scope.stop()
        again = sim.scope(scope.name, hook_rules=[GPU1])
        account = Account(sim, again)
        await post.until(
            lambda: post.state(again) is State.AT_RISK and post.of(again).target.inode != inode, "it was not found"
        )
        sim.daemon_reload()
        await post.becomes(again, State.PROTECTED)
        assert account.written() == [f"allow {GPU1}"]
        assert len(post.events("gone")) == 1

    async def test_a_fault_of_ours_with_one_scope_is_not_the_others(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When a look fails in a way that nobody thought of it is told, and the other containers are guarded."""
        bad, good = sim.scope(hook_rules=[GPU0]), sim.scope(hook_rules=[GPU1])
        post = await station(sim)
        genuine = post.guard.parts.observer.view

        async def view(unit: str, control_group: str) -> object:
            if unit == bad.name:
                raise ZeroDivisionError
            return await genuine(unit, control_group)

        monkeypatch.setattr(post.guard.parts.observer, "view", view)
        await post.becomes(good, State.PROTECTED)
        assert any(entry["event"].startswith("internal error") for entry in post.log)

    @pytest.mark.invariant(6)
    async def test_an_ancestor_that_denies_is_named_and_not_touched(
        self, sim: SimNode, station: Station, kernel: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """On a real kernel: what an ancestor denies stays lost, the error names it, and nobody writes to it."""
        inner = f"{kernel.slice}/gpuguardtest.slice"
        scope = f"{inner}/{kernel.scope.rpartition('/')[2]}"
        kernel.make(inner, GPU0, CTL)
        kernel.make(scope, GPU0)
        # Nothing but the test's own slice is to be seen, whatever real containers this machine has.
        (tmp_path / "devices").symlink_to(kernel.path(kernel.slice))
        post = await station(sim, {"paths": {**sim.config_paths(), "cgroup": str(tmp_path)}, "backoff": PATIENT})
        group = scope[len(kernel.slice) :]
        monkeypatch.setattr(mend, "_LOOKS", (0.0, 0.002))  # a real kernel has done a write when it returns
        await post.until(lambda: group in post.guard.scopes, "the scope was not found")
        await post.until(lambda: post.guard.scopes[group].state is State.AT_RISK, "it did not settle")
        kernel.deny(inner, GPU0)
        await post.until(lambda: post.events("repair_failed"), "the failure was not told")
        assert post.guard.scopes[group].state is State.LOST
        assert "its ancestor /gpuguardtest.slice denies it" in post.events("repair_failed")[0]["reason"]
        assert kernel.lines(inner) == [CTL]
        kernel.allow(inner, GPU0)
        await post.until(lambda: post.events("repaired"), "the loss was not repaired")
        assert kernel.lines(scope) == [GPU0]


async def _take_away_again_and_again(scope: SimScope) -> None:
    while True:
        if GPU0 in scope.rules().text():
            await asyncio.to_thread(scope.write_rules, [GPU0], "deny")
        await asyncio.sleep(0.02)


class TestDeath:
    """Guards that end and begin."""

    @pytest.mark.invariant(5)
    async def test_who_wrote_last_is_known_to_the_next_one(self, sim: SimNode, station: Station) -> None:
        """The next guard of the same daemon goes on with it, and with what was told; a namesake has no past."""
        scope, other = sim.scope(hook_rules=[GPU0]), sim.scope(hook_rules=[GPU1])
        first = await station(sim, NOT_BEFORE_A_LOSS)
        for one in (scope, other):
            await first.becomes(one, State.AT_RISK)
            first.of(one).last = (1.0, Cause("reload", SYSTEMD))
        await first.stop()
        other.stop()
        namesake = sim.scope(other.name, hook_rules=[GPU1])
        second = Post(sim, NOT_BEFORE_A_LOSS)
        second.build()
        second.guard.take_over(first.guard)
        for one in (scope, namesake):
            await second.guard.look(one.group, fresh=True)
        assert second.of(scope).last == (1.0, Cause("reload", SYSTEMD))
        assert second.of(namesake).last is None
        assert [entry["scope"] for entry in second.events("found")] == []
        await second.stop()

    @pytest.mark.invariant(7)
    async def test_what_was_learnt_outlives_the_guard(self, sim: SimNode, station: Station) -> None:
        """What a container lost while nobody guarded it is given back by the next guard, from the ledger."""
        scope = sim.scope(hook_rules=[GPU0, CTL])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.stop()
        before, account = scope.rules(), Account(sim, scope)
        sim.daemon_reload()
        assert GPU0 not in scope.rules().text()
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        assert scope.rules() == before
        assert account.written() == [f"allow {GPU0}", f"allow {CTL}"]
        assert "outage_usec" not in post.events("repaired")[0]

    @pytest.mark.invariant(7)
    async def test_its_end_changes_nothing(self, sim: SimNode, station: Station) -> None:
        """Stopping opens no permission and closes none, in the kernel or with systemd."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        before, account = scope.rules(), Account(sim, scope)
        await post.stop()
        assert (account.written(), account.calls(), scope.rules()) == ([], [], before)
        sim.daemon_reload()
        assert scope.rules() == before

    async def test_a_damaged_ledger_grants_nothing(self, sim: SimNode, station: Station) -> None:
        """A ledger of nonsense is told; what the container lost meanwhile is not guessed."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.stop()
        (entry,) = sim.path("/run/gpuguard/ledger").iterdir()
        entry.write_text("nonsense")
        sim.daemon_reload()
        account = Account(sim, scope)
        post = await station(sim)
        await post.until(lambda: scope.group in post.guard.scopes, "the scope was not found")
        await post.rounds(2)
        assert len(post.events("ledger_damaged")) == 1
        assert post.of(scope).entitled is None
        assert account.written() == []

    @pytest.mark.invariant(10)
    async def test_containers_that_ended_meanwhile_are_forgotten(self, sim: SimNode, station: Station) -> None:
        """The ledger does not grow with containers that ended while nobody guarded."""
        scope, other = sim.scope(hook_rules=[GPU0]), sim.scope(hook_rules=[GPU1])
        post = await station(sim)
        for one in (scope, other):
            await post.becomes(one, State.PROTECTED)
        await post.stop()
        scope.stop()
        post = await station(sim)
        await post.becomes(other, State.PROTECTED)
        assert [path.name for path in sim.path("/run/gpuguard/ledger").iterdir()] == [f"{_inode(other)}.json"]

    async def test_a_ledger_that_cannot_be_written_does_not_hinder(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a full disk the container is guarded all the same; the trouble is told."""
        scope = sim.scope(hook_rules=[GPU0])

        def full(*_: object, **__: Optional[str]) -> None:
            raise OSError(28, os.strerror(28))

        monkeypatch.setattr(Path, "write_text", full)
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        assert any("cannot write the ledger: No space left" in entry["event"] for entry in post.log)


def _inode(scope: SimScope) -> int:
    return scope.cgroup.stat().st_ino
