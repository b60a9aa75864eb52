"""What an operator asks of a guard at work: repair now, release a device."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.errors import GpuguardError, NotFoundError
from gpuguard.guard import verbs
from gpuguard.model.plan import Plan
from gpuguard.model.reports import ReleaseReport, RepairReport
from gpuguard.model.rule import Rule
from gpuguard.model.runtime_record import Identity, RuntimeRecord
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict
from tests.guard import made
from tests.guard.account import Account
from tests.guard.conftest import Station
from tests.guard.overruling import overrule
from tests.guard.post import NEVER, Post, Tables
from tests.lab.scope import BASICS
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope
from tests.model.looks import declaration, rules

GPU0, GPU1 = "c 195:0 rw", "c 195:1 rw"
SLOW: Tables = {"guard": {"poll_interval": NEVER, "declare": False}}


def id_of(scope: SimScope) -> str:
    """Return the container's id."""
    return scope.name[len("docker-") : -len(".scope")]


async def ask(post: Post, **request: object) -> object:
    """Ask what a command asks over the control socket."""
    return await verbs.Desk(post.assembly, post.describe).answer(json.loads(json.dumps(request)))


class TestRepair:
    """`gpuguard repair`."""

    async def test_tells_what_was_done(self, sim: SimNode, station: Station) -> None:
        """A loss is repaired at once, and the report has the states before and after, and the deeds."""
        scope, other = sim.scope(hook_rules=[GPU0]), sim.scope(device_allow=[*BASICS, "/dev/char/195:1 rw"])
        post = await station(sim, SLOW)
        await post.becomes(scope, State.AT_RISK)
        await post.becomes(other, State.PROTECTED)
        await post.quiet()
        post.of(scope).record = RuntimeRecord(identity=Identity("main", "ml", "train-0"))
        scope.write_rules([GPU0], verb="deny")
        report = await ask(post, verb="repair", names=[])
        assert isinstance(report, RepairReport)
        found = {repair.scope: repair for repair in report.repairs}
        assert set(found) == {scope.name, other.name}
        # The guard itself has not looked since: what it knew was at-risk.
        assert (found[scope.name].before, found[scope.name].after) == (State.LOST, State.PROTECTED)
        assert found[scope.name].full_name == "ml/train-0/main"
        assert found[scope.name].deeds == (f"write {GPU0}", "declare /dev/char/195:0 rw")
        assert (found[other.name].before, found[other.name].deeds) == (State.PROTECTED, ())
        assert all(repair.settled for repair in report.repairs)
        assert GPU0 in scope.rules().text()

    async def test_its_first_look_leaves_no_trace(self, sim: SimNode, station: Station) -> None:
        """Looking before acting is no event, no deed and no figure of its own: the loss is told and mended once."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, SLOW)
        await post.becomes(scope, State.AT_RISK)
        await post.quiet()
        post.log.clear()
        account = Account(sim, scope)
        scope.write_rules([GPU0], verb="deny")
        await ask(post, verb="repair", names=[scope.name])
        assert post.kinds() == ["lost", "repaired", "declared"]
        assert account.written() == [f"deny {GPU0}", f"allow {GPU0}"]
        assert post.value("gpuguard_repairs_total") == 2
        assert post.value("gpuguard_drift_total", kind="lost") == 1

    async def test_of_one_leaves_the_others(self, sim: SimNode, station: Station) -> None:
        """Only the named container is looked at, and once, however often it was named."""
        scope, other = sim.scope(hook_rules=[GPU0]), sim.scope(hook_rules=[GPU1])
        post = await station(sim, SLOW)
        for one in (scope, other):
            await post.becomes(one, State.AT_RISK)
        await post.quiet()
        account = Account(sim, other)
        other.write_rules([GPU1], verb="deny")
        report = await ask(post, verb="repair", names=[id_of(scope)[:12], scope.name])
        assert isinstance(report, RepairReport)
        assert [repair.scope for repair in report.repairs] == [scope.name]
        assert account.written() == [f"deny {GPU1}"]

    async def test_goes_before_the_back_off(self, sim: SimNode, station: Station) -> None:
        """An operator who says now does not wait for the end of a pause."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, SLOW)
        await post.becomes(scope, State.AT_RISK)
        await post.quiet()
        post.of(scope).backoff.until = float("inf")
        scope.write_rules([GPU0], verb="deny")
        await ask(post, verb="repair", names=[scope.name])
        assert GPU0 in scope.rules().text()

    async def test_tries_again_what_was_in_vain(self, sim: SimNode, station: Station) -> None:
        """An operator who has cured something that gpuguard cannot see need not restart anything."""
        overrule(sim)
        scope = sim.scope(hook_rules=[GPU0])
        account = Account(sim, scope)
        post = await station(sim)
        await post.until(lambda: post.events("declare_failed"), "it was not told")
        await post.rounds(3)
        assert len(account.declared()) == 1
        await ask(post, verb="repair", names=[scope.name])
        assert len(account.declared()) == 2

    async def test_tells_what_could_not_be_done(self, sim: SimNode, station: Station) -> None:
        """What is left to do is an error with the reason."""
        scope = sim.scope(hook_rules=["c *:7 rw"])
        post = await station(sim)
        await post.becomes(scope, State.AT_RISK)
        report = await ask(post, verb="repair", names=[scope.name])
        assert isinstance(report, RepairReport)
        (repair,) = report.repairs
        assert (repair.settled, repair.error) == (False, "undeclarable: systemd has no spelling for c *:7 rw")

    async def test_of_an_unknown_container_does_nothing(self, sim: SimNode, station: Station) -> None:
        """One name that means nothing stops the whole request before anything is done."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, SLOW)
        await post.becomes(scope, State.AT_RISK)
        await post.quiet()
        account = Account(sim, scope)
        scope.write_rules([GPU0], verb="deny")
        with pytest.raises(NotFoundError):
            await ask(post, verb="repair", names=[scope.name, "nobody"])
        assert account.written() == [f"deny {GPU0}"]

    async def test_is_refused_in_observe_mode(self, sim: SimNode, station: Station) -> None:
        """A guard that observes changes nothing on request either."""
        post = await station(sim, enforce=False)
        with pytest.raises(GpuguardError, match="observe mode"):
            await ask(post, verb="repair", names=[])


LOST = Verdict(State.LOST, lost=rules(GPU0), at_risk=rules(GPU0))
DECLARE = declaration("/dev/char/195:0 rw").entries


@pytest.mark.parametrize(
    ("writable", "verdict", "plan", "after"),
    [
        (True, LOST, Plan(write=tuple(rules(GPU0)), declare=DECLARE), State.PROTECTED),
        (True, LOST, Plan(write=tuple(rules(GPU0))), State.AT_RISK),
        (True, LOST, Plan(declare=DECLARE), State.LOST),
        (True, LOST, Plan(), State.LOST),
        (False, LOST, Plan(declare=DECLARE), State.PROTECTED),
        (False, replace(LOST, blocked=rules(GPU0)), Plan(declare=DECLARE), State.LOST),
        (False, LOST, Plan(), State.LOST),
        (False, Verdict(State.AT_RISK, at_risk=rules(GPU0)), Plan(declare=DECLARE), State.PROTECTED),
        (
            True,
            LOST,
            Plan(tuple(rules(GPU0)), tuple(rules(GPU0)), DECLARE, undeclarable=(Rule.parse("c *:7 rw"),)),
            None,
        ),
        (True, Verdict(State.PROTECTED), Plan(), State.PROTECTED),
        (False, Verdict(State.UNRESTRICTED), Plan(), State.UNRESTRICTED),
    ],
)
def test_a_plan_s_outcome(writable: bool, verdict: Verdict, plan: Plan, after: Optional[State]) -> None:
    """A dry run promises what a repair would reach, on cgroup v1 and v2: not a bit more; what is left has a reason."""
    it = made.scope(verdict=verdict)
    it.plan = plan
    told = verbs.planned(it, writable=writable)
    assert told.after is (after or State.AT_RISK)
    assert told.settled == (told.error is None) == (told.after in {State.PROTECTED, State.UNRESTRICTED})


def test_a_plan_that_files_on_disk_overrule() -> None:
    """An administrator's drop-in that takes away what systemd has in memory does so to a declaration, too."""
    overruled = declaration("/dev/char/195:1 rw", disk=["c 1:3 rwm"])
    it = made.scope(verdict=Verdict(State.AT_RISK, "why", at_risk=rules(GPU0)), declared=overruled)
    it.plan = Plan(declare=DECLARE)
    told = verbs.planned(it, writable=False)
    assert (told.after, told.error) == (State.AT_RISK, "why")


class TestDaemon:
    """What a command asks before it does anything."""

    async def test_tells_of_itself(self, sim: SimNode, station: Station) -> None:
        """Its mode and settings are those that it works with."""
        post = await station(sim, SLOW, enforce=False)
        assert await ask(post, verb="daemon") == post.describe()


class TestRelease:
    """`gpuguard release`."""

    @pytest.mark.parametrize("device", ["c 195:0", "195:0", "/dev/nvidia0"])
    async def test_is_for_good(self, sim: SimNode, station: Station, device: str) -> None:
        """A released device is not given back, now or after a restart; the others are."""
        if device == "/dev/nvidia0" and not sim.path(device).exists():
            pytest.skip("needs root to make a device node")
        scope = sim.scope(hook_rules=[GPU0, GPU1])
        post = await station(sim, SLOW)
        await post.becomes(scope, State.AT_RISK)
        report = await ask(post, verb="release", name=scope.name, devices=[device])
        assert report == ReleaseReport(scope.name, id_of(scope), (GPU0,), effective=(GPU0,), declared=())
        assert post.kinds()[-1] == "released"
        await post.stop()
        sim.daemon_reload()
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        rules = scope.rules()
        assert (rules.covers(Rule.parse(GPU0)), rules.covers(Rule.parse(GPU1))) == (False, True)
        assert post.entitled(scope) == {GPU1}

    async def test_tells_what_systemd_would_still_give_back(self, sim: SimNode, station: Station) -> None:
        """What is declared comes back at each reload: the report says so."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        scope.write_rules([GPU0], verb="deny")
        report = await ask(post, verb="release", name=scope.name, devices=[])
        assert isinstance(report, ReleaseReport)
        assert (report.devices, report.declared) == ((GPU0,), (GPU0,))
        await asyncio.sleep(0.3)
        assert GPU0 not in scope.rules().text()

    @pytest.mark.parametrize(
        ("devices", "complaint"),
        [
            (["c 195:7"], "is not entitled to c 195:7; it is entitled to c 195:0"),
            (["c 195:0", "c 195:7"], "is not entitled to c 195:7; it is entitled to c 195:0"),
            (["nonsense"], "neither a device node on this host nor a number"),
            (["/dev/nvidia9"], "neither a device node on this host nor a number"),
            (["c 195:\u0660"], "neither a device node on this host nor a number"),
        ],
    )
    async def test_of_what_is_not_there(
        self, sim: SimNode, station: Station, devices: list[str], complaint: str
    ) -> None:
        """One device that the container is not entitled to stops the whole request."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        with pytest.raises(NotFoundError, match=complaint):
            await ask(post, verb="release", name=scope.name, devices=devices)
        assert post.entitled(scope) == {GPU0}

    async def test_of_a_container_that_has_nothing(self, sim: SimNode, station: Station) -> None:
        """A privileged container has no devices that could be released."""
        scope = sim.scope(device_allow=[], policy="auto")
        post = await station(sim)
        await post.becomes(scope, State.UNRESTRICTED)
        with pytest.raises(NotFoundError, match="has no devices that could be released"):
            await ask(post, verb="release", name=scope.name, devices=[])


@pytest.mark.parametrize(
    "request_",
    [{}, {"verb": "dance"}, {"verb": ["release"]}, {"verb": "release"}, {"verb": "release", "name": 5, "devices": [5]}],
)
async def test_a_request_that_is_none(sim: SimNode, station: Station, request_: dict[str, object]) -> None:
    """A verb that is not known, and one without what it needs, is an error, and nothing happens."""
    post = await station(sim)
    with pytest.raises((GpuguardError, LookupError, TypeError)):
        await ask(post, **request_)
