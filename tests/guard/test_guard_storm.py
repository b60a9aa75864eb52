"""The guard where systemd rewrites the lists again and again: that is no fight."""

from __future__ import annotations

import asyncio

import pytest
from dbus_next.signature import Variant

from gpuguard.guard.observe import SystemdView
from gpuguard.model.state import State
from tests.guard.account import Account
from tests.guard.conftest import Station
from tests.guard.post import NEVER
from tests.lab.sim.node import SimNode

UNSPELT, GPU0 = "c *:7 rw", "c 195:0 rw"
STRICT = {"backoff": {"max_repairs": 2, "window": "10m", "pause": "10m"}}


@pytest.mark.invariant(8)
class TestStorm:
    """More rewrites by systemd than the back-off allows repairs."""

    @pytest.mark.parametrize("kind", ["reload", "property"])
    async def test_what_is_lost_is_given_back_each_time(self, sim: SimNode, station: Station, kind: str) -> None:
        """A rule that systemd cannot express is given back after each reload or property change, without a pause."""
        scope = sim.scope(hook_rules=[UNSPELT])
        account = Account(sim, scope)
        # What the clock sees first, on a busy machine before anybody has told why, counts as a fight.
        post = await station(sim, {**STRICT, "guard": {"poll_interval": NEVER}})
        await post.becomes(scope, State.AT_RISK)
        await post.quiet()
        for number in range(1, 5):
            if kind == "reload":
                sim.daemon_reload()
            else:
                sim.set_property(scope.name, "CPUShares", Variant("t", 100 + number), visible=True)
            await post.until(lambda number=number: len(post.events("repaired")) == number, "it was not repaired")
        assert account.written() == [f"allow {UNSPELT}"] * 4
        assert post.events("fight") == []

    async def test_reloads_at_each_others_heels_end_in_a_declaration(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Where systemd reloads before each of many answers, what is lost is declared at the second of them."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {**STRICT, "guard": {"declare": False}})
        await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        observer = post.guard.parts.observer
        view = observer.view
        reloads = [sim.daemon_reload] * 5

        async def late(unit: str, control_group: str) -> SystemdView:
            if reloads:
                await asyncio.to_thread(reloads.pop())
            return await view(unit, control_group)

        monkeypatch.setattr(observer, "view", late)
        sim.daemon_reload()
        await post.becomes(scope, State.PROTECTED)
        assert post.value("gpuguard_repairs_total", method="declare", result="ok") == 1
        assert post.value("gpuguard_repairs_total", method="write", result="ok") == 2

    async def test_one_that_fights_on_is_met_with_a_pause(self, sim: SimNode, station: Station) -> None:
        """After one reload only one repair is free: who takes away again what it gave back is an opponent."""
        scope = sim.scope(hook_rules=[UNSPELT])
        account = Account(sim, scope)
        post = await station(sim, STRICT)
        await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        sim.daemon_reload()
        for number in range(1, 4):
            await post.until(lambda number=number: len(post.events("repaired")) == number, "it was not repaired")
            scope.write_rules([UNSPELT], verb="deny")
        await post.until(lambda: post.events("fight"), "the fight was not told")
        assert account.written().count(f"allow {UNSPELT}") == 3
