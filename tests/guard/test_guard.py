"""gpuguard's main job: a container that loses its devices gets them back, and loses them no more."""

from __future__ import annotations

import asyncio

import pytest
from dbus_next.signature import Variant

from gpuguard.model.state import State
from tests.guard.account import Account
from tests.guard.conftest import Station
from tests.guard.post import NEVER, Post, Tables
from tests.lab.scope import BASICS
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0, GPU1, CTL = "c 195:0 rw", "c 195:1 rw", "c 195:255 rw"
ENTRIES = ["/dev/char/195:0 rw", "/dev/char/195:255 rw"]
BY_SIGNALS: Tables = {"guard": {"poll_interval": NEVER}}
BY_CLOCK_ALONE: Tables = {"guard": {"declare": False}, "paths": {"bus": "unix:path=/nonexistent/bus"}}
NOT_BEFORE_A_LOSS: Tables = {"guard": {"poll_interval": NEVER, "declare": False}}


def trigger(sim: SimNode, scope: SimScope, kind: str) -> None:
    """Make systemd rewrite the scope's list."""
    if kind == "reload":
        sim.daemon_reload()
    elif kind == "reexec":
        sim.daemon_reexec()
    else:
        sim.set_property(scope.name, "CPUShares", Variant("t", 512), visible=kind == "visible-property")


def devices(post: Post, *rules: str) -> list[str]:
    """Return devices as the log names them: by their nodes, where the test may make some."""
    names = {"c 195:0": "nvidia0", "c 195:1": "nvidia1", "c 195:255": "nvidiactl"}
    nodes = post.node.path("/dev/nvidia0").exists()
    return [f"/dev/{names[rule]}" if nodes else rule for rule in (line.rpartition(" ")[0] for line in rules)]


class TestLoss:
    """A container loses its devices."""

    @pytest.mark.parametrize(
        ("kind", "cause"), [("reload", "reload"), ("reexec", "reexec"), ("visible-property", "property")]
    )
    async def test_is_repaired_and_put_down_to_its_cause(
        self, sim: SimNode, station: Station, kind: str, cause: str
    ) -> None:
        """By signals alone: what systemd took is given back, told with its cause, and then declared."""
        scope = sim.scope(hook_rules=[GPU0, CTL])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.quiet()
        before, account = scope.rules(), Account(sim, scope)
        trigger(sim, scope, kind)
        await post.becomes(scope, State.PROTECTED)
        assert scope.rules() == before
        assert account.written() == [f"allow {GPU0}", f"allow {CTL}"]
        assert account.declared() == [ENTRIES]
        assert post.kinds() == ["found", "at_risk", "lost", "repaired", "declared"]
        lost, repaired = post.events("lost", "repaired")
        for event in (lost, repaired):
            assert (event["cause"], event["writer"]) == (cause, "systemd")
            assert event["devices"] == devices(post, GPU0, CTL)
        assert 0 < repaired["outage_usec"] < 60_000_000

    async def test_is_counted(self, sim: SimNode, station: Station) -> None:
        """One loss is one drift, one outage, one write and one declaration, and the reload is counted."""
        scope = sim.scope(hook_rules=[GPU0, CTL])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        sim.daemon_reload()
        await post.becomes(scope, State.PROTECTED)
        assert post.value("gpuguard_drift_total", kind="lost", cause="reload", writer="systemd") == 1
        assert post.value("gpuguard_outage_seconds_count") == 1
        for method in ("write", "declare"):
            assert post.value("gpuguard_repairs_total", method=method, result="ok") == 1
            assert post.value("gpuguard_repairs_total", method=method, result="failed") == 0
        assert post.value("gpuguard_reloads_total", kind="reload") == 1

    async def test_that_no_signal_announces(self, sim: SimNode, station: Station) -> None:
        """Without a bus the clock sees a loss and the rules are written back; whose doing it was stays unknown."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, BY_CLOCK_ALONE)
        await post.becomes(scope, State.AT_RISK)
        sim.daemon_reload()
        await post.until(lambda: post.events("repaired"), "the loss was not repaired")
        assert scope.rules().text().count(GPU0) == 1
        assert post.events("lost")[0]["cause"] == "unknown"
        assert post.state(scope) is State.AT_RISK

    async def test_of_one_device(self, sim: SimNode, station: Station) -> None:
        """Of two devices only the one that was taken away is written, also when systemd knows both."""
        scope = sim.scope(device_allow=[*BASICS, "/dev/char/195:0 rw"], hook_rules=[CTL])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        account = Account(sim, scope)
        scope.write_rules([GPU0], verb="deny")
        await post.until(lambda: post.events("repaired"), "the loss was not repaired")
        assert account.written() == [f"deny {GPU0}", f"allow {GPU0}"]
        assert post.events("lost")[0]["devices"] == devices(post, GPU0)

    @pytest.mark.invariant(1)
    async def test_gives_nobody_another_s_device(self, sim: SimNode, station: Station) -> None:
        """Of two containers with a GPU each, neither ever gets the other's, however often both lose theirs."""
        scopes = {GPU0: sim.scope(hook_rules=[GPU0]), GPU1: sim.scope(hook_rules=[GPU1])}
        post = await station(sim, NOT_BEFORE_A_LOSS)
        for scope in scopes.values():
            await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        for _ in range(3):
            sim.daemon_reload()
            for gpu, scope in scopes.items():
                await post.becomes(scope, State.PROTECTED)
                mine = [write.text for write in scope.writes() if write.text.startswith("c 195:")]
                assert set(mine) == {gpu}

    @pytest.mark.invariant(1)
    async def test_does_not_bring_back_what_was_never_given(self, sim: SimNode, station: Station) -> None:
        """A rule that appears in a settled container is excess: it is told, never written back, never declared."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        scope.write_rules([GPU1])
        sim.set_property(scope.name, "Description", Variant("s", "x"), visible=True)  # a look that changes nothing
        await post.until(lambda: post.events("excess"), "the excess was not told")
        assert GPU1 in scope.rules().text()
        account = Account(sim, scope)
        sim.daemon_reload()
        await post.becomes(scope, State.PROTECTED)
        assert account.written() == [f"allow {GPU0}"]
        assert account.declared() == [["/dev/char/195:0 rw"]]
        assert post.value("gpuguard_drift_total", kind="excess") == 1


class TestHealthy:
    """A container for which there is nothing to do."""

    @pytest.mark.invariant(8)
    @pytest.mark.parametrize("kind", ["reload", "reexec", "property", "visible-property"])
    async def test_is_left_alone(self, sim: SimNode, station: Station, kind: str) -> None:
        """Once declared, however often systemd rewrites its list: no write, no declaration, no event."""
        scope = sim.scope(hook_rules=[GPU0, CTL])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        await post.sources_up()
        before, account, told = scope.rules(), Account(sim, scope), len(post.log)
        for _ in range(5):
            trigger(sim, scope, kind)
            await asyncio.sleep(0.03)
        await post.rounds(2)
        assert scope.rules() == before
        assert account.written() == []
        assert account.declared() == []
        # A reexec takes systemd off the bus for a moment, which is told of the sources.
        assert [entry for entry in post.log[told:] if entry.get("kind") not in {"source_down", "source_up"}] == []

    @pytest.mark.invariant(9)
    @pytest.mark.parametrize(
        ("device_allow", "policy", "hook_rules"),
        [
            pytest.param((), "auto", (), id="privileged"),
            pytest.param(BASICS, "strict", (), id="no-gpu"),
            pytest.param(BASICS, "strict", ("c 10:229 rw", "c 195:0 m"), id="other-devices"),
        ],
    )
    async def test_without_gpu_or_filter_is_never_touched(
        self,
        sim: SimNode,
        station: Station,
        device_allow: tuple[str, ...],
        policy: str,
        hook_rules: tuple[str, ...],
    ) -> None:
        """A privileged container, and one without a GPU, sees no write, and systemd hears nothing about it."""
        scope = sim.scope(device_allow=device_allow, policy=policy, hook_rules=hook_rules)
        account = Account(sim, scope)
        post = await station(sim)
        await post.until(lambda: scope.group in post.guard.scopes, "the scope was not found")
        await post.sources_up()
        for _ in range(3):
            sim.daemon_reload()
            await asyncio.sleep(0.03)
        await post.assembly.watch.idle()
        assert post.state(scope) is (State.UNRESTRICTED if policy == "auto" else None)
        assert (account.written(), account.calls()) == ([], [])
        assert post.kinds() == []

    async def test_is_found_when_it_starts(self, sim: SimNode, station: Station) -> None:
        """A container that starts while the guard is there is found by a signal, learnt and declared."""
        post = await station(sim, {"guard": {**BY_SIGNALS["guard"], "settle": "1s"}})  # one rule comes after the other
        await post.quiet()
        scope = await asyncio.to_thread(sim.scope, hook_rules=[GPU0, CTL])
        await post.becomes(scope, State.PROTECTED)
        assert post.kinds() == ["found", "declared"]

    async def test_is_told_when_it_ends(self, sim: SimNode, station: Station) -> None:
        """A container that ends is told once and forgotten, on disk too."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, BY_SIGNALS)
        await post.becomes(scope, State.PROTECTED)
        await post.quiet()
        assert list(sim.path("/run/gpuguard/ledger").iterdir()) != []
        scope.stop()
        await post.until(lambda: post.events("gone"), "its end was not told")
        assert scope.group not in post.guard.scopes
        assert list(sim.path("/run/gpuguard/ledger").iterdir()) == []


class TestStart:
    """A container that is starting."""

    async def test_rules_that_come_one_by_one_are_all_learnt(self, sim: SimNode, station: Station) -> None:
        """What hooks write while the container settles belongs to it, all of it is declared, in one call."""
        scope = sim.scope(hook_rules=[GPU0])
        account = Account(sim, scope)
        post = await station(sim, {"guard": {"settle": "2s"}})
        await post.until(lambda: post.state(scope) is State.SETTLING, "it was not seen settling")
        scope.write_rules([GPU1])
        await post.until(lambda: len(post.entitled(scope)) == 2, "the second rule was not learnt")
        scope.write_rules([CTL])
        await post.becomes(scope, State.PROTECTED)
        assert account.declared() == [["/dev/char/195:0 rw", "/dev/char/195:1 rw", "/dev/char/195:255 rw"]]
        assert post.events("found")[0]["devices"] == devices(post, GPU0, GPU1, CTL)

    async def test_a_loss_while_it_settles_is_repaired(self, sim: SimNode, station: Station) -> None:
        """A reload that strips a container before it has settled takes nothing for good."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"guard": {"settle": "400ms"}})
        await post.until(lambda: post.state(scope) is State.SETTLING, "it was not seen settling")
        sim.daemon_reload()
        await post.becomes(scope, State.PROTECTED)
        assert GPU0 in scope.rules().text()

    @pytest.mark.invariant(4)
    async def test_nothing_is_learnt_from_a_stripped_list(self, sim: SimNode, station: Station) -> None:
        """A container whose devices were gone before the guard came has no entitlement: nothing is invented."""
        scope = sim.scope(hook_rules=[GPU0])
        sim.daemon_reload()
        account = Account(sim, scope)
        post = await station(sim)
        await post.until(lambda: scope.group in post.guard.scopes, "the scope was not found")
        await post.sources_up()
        assert post.of(scope).entitled is None
        assert (account.written(), account.calls()) == ([], [])
