"""The permanent shield: where it is raised, that it stays, and that it goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuguard.guard import shield, verbs
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict
from tests.guard.account import Account
from tests.guard.conftest import Station
from tests.guard.post import NEVER, Post
from tests.lab.scope import BASICS
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0, GPU1, UNSPELT = "c 195:0 rw", "c 195:1 rw", "c *:7 rw"
ENTRY = "/dev/char/195:0 rw"
ON = {"guard": {"shield": True}}
OFF = {"guard": {"shield": False}}


def of(scope: SimScope) -> Path:
    """Return where a scope's shield is."""
    return scope.cgroup / SHIELD


async def shielded(post: Post, scope: SimScope) -> None:
    """Wait until a scope is shielded, and the looks are over."""
    await post.until(lambda: post.events("shielded"), "it was not shielded")
    await post.assembly.watch.idle()
    assert of(scope).is_dir()


async def stop(post: Post) -> None:
    """Stop a guard as the daemon does."""
    await post.assembly.watch.close()
    await shield.remove_all(post.guard.parts, post.guard.policy, list(post.guard.scopes.values()))


class TestRaised:
    """Where it is raised, and that it then stays."""

    @pytest.mark.invariant(2)
    @pytest.mark.invariant(8)
    async def test_once(self, sim: SimNode, station: Station) -> None:
        """A container is shielded once; reloads and declarations take nothing, leave it standing and need no write."""
        scope = sim.scope(hook_rules=[GPU0])
        account = Account(sim, scope)
        post = await station(sim, ON)
        await post.becomes(scope, State.PROTECTED)
        await shielded(post, scope)
        before, made = scope.rules(), of(scope).stat()
        assert account.declared() == [[ENTRY]]
        for _ in range(3):
            sim.daemon_reload()
            await post.rounds(2)
        scope.drop_in.unlink()
        (repair,) = (await verbs.repair(post.guard, post.assembly.watch, [scope.name], dry_run=False)).repairs
        assert (repair.error, len(account.declared())) == (None, 2)
        assert "deny a" not in account.by_systemd()
        assert (account.written(), scope.rules()) == ([], before)
        assert (of(scope).stat().st_ino, of(scope).stat().st_ctime_ns) == (made.st_ino, made.st_ctime_ns)
        assert [len(post.events(kind)) for kind in ("shielded", "unshielded", "lost")] == [1, 0, 0]

    async def test_what_cannot_be_declared_is_kept(self, sim: SimNode, station: Station) -> None:
        """A rule without a spelling survives reloads and is at risk all the same; the reason says what keeps it."""
        scope = sim.scope(hook_rules=[UNSPELT, GPU0])
        account = Account(sim, scope)
        post = await station(sim, ON)
        await post.becomes(scope, State.AT_RISK)
        await shielded(post, scope)
        for _ in range(3):
            sim.daemon_reload()
            await post.rounds(2)
        assert UNSPELT in scope.rules().text()
        assert (account.written(), post.state(scope)) == ([], State.AT_RISK)
        why = f"undeclarable: systemd has no spelling for {UNSPELT}; the shield keeps it"
        assert post.of(scope).reason == why
        (told,) = post.events("shield_keeps")
        assert told["reason"] == why
        assert not post.events("lost", "declare_failed", "at_risk")

    async def test_a_single_rule_can_be_taken_away_and_is_given_back(self, sim: SimNode, station: Station) -> None:
        """Under the shield a rule that somebody denies by itself is lost like any other, and mended like any other."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, ON)
        await shielded(post, scope)
        scope.write_rules([GPU0], verb="deny")
        await post.until(lambda: post.events("repaired"), "it was not given back")
        assert GPU0 in scope.rules().text()
        assert of(scope).is_dir()

    async def test_again_when_somebody_removes_it(self, sim: SimNode, station: Station) -> None:
        """It is made again, and after a few times gpuguard says so and pauses; repairs go on."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {**ON, "backoff": {"max_repairs": 3, "window": "1m", "pause": "1m"}})
        await shielded(post, scope)
        for _ in range(2):
            of(scope).rmdir()
            await post.until(of(scope).exists, "it was not made again")
        of(scope).rmdir()
        await post.rounds(3)
        assert not of(scope).exists()
        assert [entry for entry in post.log if "makes or removes the shield again and again" in entry["event"]]
        scope.write_rules([GPU0], verb="deny")
        await post.until(lambda: post.events("repaired"), "it was not given back")


class TestNotRaised:
    """Where it is not to be."""

    async def test_in_observe_mode(self, sim: SimNode, station: Station) -> None:
        """Who only observes makes no directory, and removes none."""
        scope, other = sim.scope(hook_rules=[GPU0]), sim.scope(hook_rules=[GPU1])
        of(other).mkdir()
        post = await station(sim, ON, enforce=False)
        for one in (scope, other):
            await post.becomes(one, State.AT_RISK)
        await post.rounds(3)
        await stop(post)
        assert (of(scope).exists(), of(other).exists()) == (False, True)

    async def test_without_a_gpu_or_a_filter(self, sim: SimNode, station: Station) -> None:
        """Containers without guarded devices and those without a filter are left alone."""
        plain, privileged = sim.scope(), sim.scope(policy="auto", device_allow=())
        guarded = sim.scope(hook_rules=[GPU0])
        post = await station(sim, ON)
        await shielded(post, guarded)
        await post.rounds(2)
        assert not of(plain).exists()
        assert not of(privileged).exists()

    async def test_below_groups_of_its_own(self, sim: SimNode, station: Station) -> None:
        """A container with control groups of its own has the effect anyway; when they go it gets the shield."""
        scope = sim.scope(hook_rules=[GPU0])
        (scope.cgroup / "payload").mkdir()
        post = await station(sim, ON)
        await post.becomes(scope, State.PROTECTED)
        await post.rounds(3)
        assert not of(scope).exists()
        (scope.cgroup / "payload").rmdir()
        await shielded(post, scope)
        (scope.cgroup / "payload").mkdir()
        await post.rounds(3)
        assert of(scope).is_dir()

    async def test_at_a_list_that_is_not_whole(self, sim: SimNode, station: Station) -> None:
        """What is lost, or cannot be read, is not shielded; once it is whole it is."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        policy, known = replace(post.guard.policy, shield=True), post.of(scope)
        for state in (State.LOST, State.PARTIAL, State.STALE, State.OPAQUE, State.UNRESTRICTED):
            known.verdict = Verdict(state)
            shield.raise_if_due(post.guard.parts, policy, known)
            assert not of(scope).exists()
        known.verdict = Verdict(State.PROTECTED)
        shield.raise_if_due(post.guard.parts, policy, known)
        assert of(scope).is_dir()

    async def test_while_it_settles(self, sim: SimNode, station: Station) -> None:
        """What is still starting is not shielded: its runtime may be writing."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"guard": {"shield": True, "settle": "5m"}})
        await post.becomes(scope, State.SETTLING)
        await post.rounds(3)
        assert not of(scope).exists()

    async def test_at_a_container_that_has_ended(self, sim: SimNode, station: Station) -> None:
        """A group without a process is not shielded, and loses the shield that it has."""
        scope = sim.scope(hook_rules=[GPU0])
        processes = scope.cgroup / "cgroup.procs"
        pids = processes.read_text()
        processes.write_text("")
        post = await station(sim, ON)
        await post.becomes(scope, State.PROTECTED)
        await post.rounds(2)
        assert not of(scope).exists()
        processes.write_text(pids)
        await shielded(post, scope)
        processes.write_text("")
        await post.assembly.watch.looked(scope.group)
        assert not of(scope).exists()

    async def test_when_it_ends_in_that_moment(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A shield that came after the last process has gone is taken back: systemd is removing the group."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        answers = [True, False]
        monkeypatch.setattr(post.guard.parts.devices, "populated", lambda _: answers.pop(0))
        shield.raise_if_due(post.guard.parts, replace(post.guard.policy, shield=True), post.of(scope))
        assert answers == []
        assert not of(scope).exists()

    async def test_at_a_service(self, sim: SimNode, station: Station) -> None:
        """A unit that can run again in the same group would hand down the list that the shield keeps."""
        unit = "job.service"
        service = sim.scope(unit, hook_rules=[GPU0])
        post = await station(sim, {**ON, "scopes": {"units": [unit]}})
        await post.becomes(service, State.AT_RISK)
        await post.rounds(3)
        assert not of(service).exists()

    async def test_where_a_file_is_in_its_place(self, sim: SimNode, station: Station) -> None:
        """What is no directory shields nobody; it is not removed, and the guard goes on."""
        scope = sim.scope(hook_rules=[GPU0])
        of(scope).write_text("")
        post = await station(sim, ON)
        await post.becomes(scope, State.PROTECTED)
        await post.rounds(8)
        assert of(scope).is_file()
        assert not post.events("shielded")


class TestRemoved:
    """When it goes."""

    @pytest.mark.invariant(7)
    async def test_at_a_stop(self, sim: SimNode, station: Station) -> None:
        """A stop removes it, changes no rule, and waits for nobody where systemd has nothing to answer."""
        scope, other = sim.scope(hook_rules=[GPU0]), sim.scope(hook_rules=[GPU1])
        post = await station(sim, ON)
        await post.until(lambda: len(post.events("shielded")) == 2, "they were not shielded")
        before, account = scope.rules(), Account(sim, scope)
        sim.busy(1.0)
        await stop(post)
        assert not of(scope).exists()
        assert not of(other).exists()
        assert (account.written(), account.calls(), scope.rules()) == ([], [], before)
        assert len(post.events("unshielded")) == 2

    @pytest.mark.invariant(2)
    async def test_not_at_a_stop_in_the_middle_of_a_declaration(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While systemd may yet carry out a declaration it stays, after a bounded time; the next guard removes it."""
        monkeypatch.setattr(shield, "_STOP", 0.2)
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"guard": {"shield": True, "declare": False}})
        await shielded(post, scope)
        before = scope.rules()
        sim.busy(5.0)  # the test's own turn may come late, too
        post.of(scope).outstanding = True
        await stop(post)
        assert of(scope).is_dir()
        assert [entry for entry in post.log if "the shield stays" in entry["event"]]
        await post.stop()
        post = await station(sim, OFF)
        await post.until(lambda: not of(scope).exists(), "it was not removed")
        assert scope.rules() == before

    async def test_one_that_somebody_uses_does_not_hinder_a_stop(self, sim: SimNode, station: Station) -> None:
        """What is not empty stays, is told, and the others go."""
        scope, other = sim.scope(hook_rules=[GPU0]), sim.scope(hook_rules=[GPU1])
        post = await station(sim, ON)
        await post.until(lambda: len(post.events("shielded")) == 2, "they were not shielded")
        (of(scope) / "squatter").mkdir()
        await stop(post)
        assert (of(scope).exists(), of(other).exists()) == (True, False)
        assert [entry for entry in post.log if "cannot remove the shield" in entry["event"]]

    @pytest.mark.invariant(7)
    async def test_a_crash_leaves_it_for_the_next(self, sim: SimNode, station: Station) -> None:
        """One that a crash left is kept as it is if it is wanted, and removed if not."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, ON)
        await shielded(post, scope)
        made = of(scope).stat()
        await post.stop()  # as a crash does: what stands stays
        post = await station(sim, ON)
        await post.becomes(scope, State.PROTECTED)
        await post.rounds(2)
        assert of(scope).stat().st_ctime_ns == made.st_ctime_ns
        await post.stop()
        post = await station(sim, OFF)
        await post.until(lambda: not of(scope).exists(), "it was not removed")
        assert len(post.events("shield_removed")) == 1

    async def test_when_devices_are_released(self, sim: SimNode, station: Station) -> None:
        """Who wants a device gone gets a list that systemd can tighten again."""
        scope = sim.scope(hook_rules=[GPU0, GPU1])
        post = await station(sim, ON)
        await shielded(post, scope)
        verbs.release(post.guard, post.assembly.host, scope.name, [GPU0[:7]])
        await post.until(lambda: post.events("unshielded"), "it was not removed")
        await post.rounds(3)
        assert not of(scope).exists()

    async def test_who_makes_shields_is_not_raced(self, sim: SimNode, station: Station) -> None:
        """A container that makes one again and again, where none is wanted, is left alone after a few times."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"backoff": {"max_repairs": 3, "window": "1m", "pause": "1m"}})
        await post.becomes(scope, State.PROTECTED)
        for _ in range(3):
            of(scope).mkdir()
            await post.until(lambda: not of(scope).exists(), "it was not removed")
        of(scope).mkdir()
        await post.rounds(3)
        assert of(scope).is_dir()
        assert len(post.events("shield_removed")) == 3

    async def test_it_goes_with_the_container(self, sim: SimNode, station: Station) -> None:
        """The end of a container is seen as ever, and one of the same name begins anew."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, ON)
        await shielded(post, scope)
        scope.stop()
        await post.until(lambda: post.events("gone"), "the end was not seen")
        again = sim.scope(scope.name, device_allow=[*BASICS, ENTRY])
        await post.until(of(again).is_dir, "the next was not shielded")

    async def test_the_clock_knows_when_there_is_something_to_do(self, sim: SimNode, station: Station) -> None:
        """A shielded container needs no look; one whose shield has gone does."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"guard": {"shield": True, "poll_interval": NEVER}})
        await shielded(post, scope)
        await post.quiet()
        known = post.of(scope)
        assert post.guard.calm(scope.group, known.target.inode)
        of(scope).rmdir()
        assert not post.guard.calm(scope.group, known.target.inode)
