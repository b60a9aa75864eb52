"""What the guard does with what the runtimes' own files say of a container."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.errors import RuntimeFileError, RuntimeFileLateError, RuntimeFileUnreadableError, RuntimeRunError
from gpuguard.guard import act, records, verbs
from gpuguard.guard.mend import Target
from gpuguard.guard.scope import Outage, Scope
from gpuguard.model.backoff import Backoff
from gpuguard.model.cause import Cause
from gpuguard.model.grant import Grant, Source
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.plan import Plan
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.runtime_record import Identity, RuntimeRecord
from gpuguard.model.scope_name import ContainerScope
from gpuguard.model.state import State
from gpuguard.model.unit import DeviceAllow
from tests.guard.conftest import Station
from tests.guard.post import NEVER, Post
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0, GPU1 = "c 195:0 rw", "c 195:1 rw"
ENTRY = DeviceAllow("/dev/char/195:0", Access.READ | Access.WRITE)


class Said:
    """Says of each container what the test has it say, and counts how often it is asked."""

    def __init__(self, answer: Callable[[], RuntimeRecord]) -> None:
        self.answer = answer
        self.asked = 0

    async def read(self, scope: Scope) -> RuntimeRecord:  # noqa: ARG002 - of all the same
        """Answer."""
        self.asked += 1
        return self.answer()

    def close(self) -> None:
        """There is nothing to let go of."""


def record(*lines: str, age: float = 60.0, **more: object) -> RuntimeRecord:
    """Return what a specification says that is some seconds old."""
    grants = tuple(Grant(Rule.parse(line), Source.SPEC, "linux.resources.devices in a file") for line in lines)
    made = RuntimeRecord(path="/config.json", since=time.time() - age, grants=grants, possible=RuleSet.of(*lines))
    return replace(made, **more)  # type: ignore[arg-type]  # fields by name


def hear(post: Post, answer: Callable[[], RuntimeRecord]) -> Said:
    """Let the guard hear that from now on."""
    said = Said(answer)
    post.guard.parts.records.close()
    post.guard.parts = replace(post.guard.parts, records=said)
    return said


def has(scope: SimScope, line: str) -> bool:
    """Whether a rule is in force."""
    return scope.rules().covers(Rule.parse(line))


def moved(post: Post, *drivers: tuple[str, int, str], nodes: Optional[dict[str, DeviceNumber]] = None) -> None:
    """Have the host's drivers be others from now on."""
    guarded = post.guard.parts.guarded
    guarded.refresh = lambda: None  # type: ignore[method-assign]  # the host has no such driver
    guarded._majors = Majors(frozenset(drivers))
    guarded._nodes = nodes or {}
    guarded.generation += 1


def now(post: Post, scope: SimScope, *drivers: tuple[str, int, str]) -> None:
    """Have the drivers be others, under the same nodes, and a scope looked at."""
    moved(post, *drivers, nodes=dict(post.guard.parts.guarded.nodes))
    post.assembly.watch.want(scope.group, fresh=True)


def of_nvidia(post: Post, scope: SimScope) -> None:
    """Have a scope's numbers be known for NVIDIA's driver's."""
    known = post.of(scope).entitled
    assert known is not None
    post.guard.keep(post.of(scope), replace(known, drivers=frozenset({("c", 195, "nvidia")})))


class TestGrants:
    """A container that was stripped before anybody looked."""

    async def test_is_cured(self, sim: SimNode, station: Station) -> None:
        """What its specification says is written and declared, and `status` says by what it is entitled."""
        post = await station(sim)
        said = hear(post, lambda: record(GPU0, identity=Identity("trainer", "ml", "pod-0")))
        scope = sim.scope()
        await post.becomes(scope, State.PROTECTED)
        assert has(scope, GPU0)
        assert post.entitled(scope) == {GPU0}
        entitled = post.of(scope).entitled
        assert entitled is not None
        assert entitled.source(Rule.parse(GPU0)) is Source.SPEC
        assert post.events("found")[0]["name"] == "trainer"
        assert said.asked == 1

    @pytest.mark.invariant(1)
    async def test_is_not_overtaken_while_it_is_new(self, sim: SimNode, station: Station) -> None:
        """A hook may still be at work: nothing is written before the settle time has passed."""
        post = await station(sim)
        hear(post, lambda: record(GPU0, age=-60.0))
        scope = sim.scope()
        await post.until(lambda: scope.group in post.guard.scopes, "the scope was not seen")
        await post.rounds(10)
        assert not has(scope, GPU0)
        assert post.entitled(scope) == set()

    async def test_a_young_one_is_cured_when_its_start_is_over(self, sim: SimNode, station: Station) -> None:
        """Nothing else than the time that passes tells that it is."""
        post = await station(sim)
        said = hear(post, lambda: made)
        made = record(GPU0, age=-2.0)
        scope = sim.scope()
        await post.until(lambda: said.asked, "nobody was asked")
        await post.assembly.watch.idle()
        assert post.entitled(scope) == set()
        await post.becomes(scope, State.PROTECTED)
        assert has(scope, GPU0)

    @pytest.mark.invariant(1)
    async def test_without_a_word_nothing_is_given(self, sim: SimNode, station: Station) -> None:
        """Files that are not believed say nothing, and that is told only when it stays so."""

        def refuse() -> RuntimeRecord:
            raise RuntimeFileError("/config.json: not believed")

        post = await station(sim)
        said = hear(post, refuse)
        scope = sim.scope()
        await post.until(lambda: said.asked, "nobody was asked")
        await post.rounds(10)
        assert (post.entitled(scope), post.events("trouble")) == (set(), [])
        known = post.of(scope)
        assert known.record.trouble == "/config.json: not believed"
        known.known_since -= 3600.0
        known.consulted = known.known_since
        await records.consult(post.guard.parts, post.guard.policy, known)
        assert [entry["reason"] for entry in post.events("trouble")] == ["/config.json: not believed"]


class TestDoubts:
    """A request that cannot be told for certain."""

    async def test_is_said(self, sim: SimNode, station: Station) -> None:
        """The state says that nobody knows, and nothing is given."""
        post = await station(sim)
        hear(post, lambda: record(asked=True, doubts=("config.toml was changed",)))
        scope = sim.scope()
        await post.becomes(scope, State.OPAQUE)
        assert post.of(scope).reason == "config.toml was changed"
        assert post.kinds() == ["unclear"]
        assert not has(scope, GPU0)

    async def test_a_refusal_is_none(self, sim: SimNode, station: Station) -> None:
        """What the toolkit refused is no GPU container."""
        post = await station(sim)
        hear(post, lambda: record(asked=True, refusal="the toolkit takes that from nobody"))
        scope = sim.scope()
        await post.until(lambda: scope.group in post.guard.scopes, "the scope was not seen")
        await post.rounds(5)
        assert post.state(scope) is None


@pytest.mark.invariant(1)
class TestTrust:
    """A container that may write its own list."""

    async def test_is_not_believed(self, sim: SimNode, station: Station) -> None:
        """What is in force beyond its specification is excess, neither learnt nor declared nor given back."""
        post = await station(sim)
        hear(post, lambda: record(GPU0, trusted=False))
        scope = sim.scope(hook_rules=[GPU0, GPU1])
        await post.becomes(scope, State.PROTECTED)
        assert post.entitled(scope) == {GPU0}
        assert [entry["devices"] for entry in post.events("excess")] == [["/dev/nvidia1"]]
        sim.daemon_reload()
        await post.until(lambda: has(scope, GPU0) and not has(scope, GPU1), "the reload took nothing")
        await post.rounds(5)
        assert not has(scope, GPU1)

    async def test_what_it_may_have_been_given_it_may_have_written(self, sim: SimNode, station: Station) -> None:
        """It asked for one instance of MIG's, say, and nobody can tell which: another's is not learnt."""
        post = await station(sim)
        hear(post, lambda: record(GPU0, trusted=False, possible=RuleSet.of(GPU0, GPU1)))
        scope = sim.scope(hook_rules=[GPU0, GPU1])
        await post.becomes(scope, State.PROTECTED)
        assert post.entitled(scope) == {GPU0}

    def test_a_part_of_what_it_was_given(self) -> None:
        """Or anything at all, where it was given all there is."""
        known = Scope(Target("u", "/u", 1, "/u"), ContainerScope("docker", "a" * 64), Backoff(1, 1, 1))
        known.record = record("c 195:* rw", trusted=False)
        assert known.learnable(Rule.parse(GPU0), starting=False)
        assert not known.learnable(Rule.parse("c 511:0 rw"), starting=False)
        known.record = record(trusted=False, possible=RuleSet(unrestricted=True))
        assert known.learnable(Rule.parse(GPU0), starting=False)

    async def test_that_was_given_nothing(self, sim: SimNode, station: Station) -> None:
        """What it has all the same is told."""
        post = await station(sim)
        hear(post, lambda: record(trusted=False))
        scope = sim.scope(hook_rules=[GPU1])
        await post.becomes(scope, State.PROTECTED)
        assert (post.entitled(scope), post.of(scope).reason) == (set(), "nothing was given to it")
        assert post.kinds() == ["excess"]

    async def test_that_has_lost_what_it_was_not_given(self, sim: SimNode, station: Station) -> None:
        """There is nothing to repair, and nothing to tell of it any more."""
        post = await station(sim, {"guard": {"poll_interval": NEVER}})
        hear(post, lambda: record(trusted=False))
        scope = sim.scope(hook_rules=[GPU1])
        await post.becomes(scope, State.PROTECTED)
        await post.quiet()
        scope.write_rules([GPU1], verb="deny")
        report = await verbs.repair(post.guard, post.assembly.watch, [], dry_run=False)
        assert report.repairs == ()
        assert post.state(scope) is None

    async def test_one_that_may_not_is_learnt_from(self, sim: SimNode, station: Station) -> None:
        """What is in force in a container without that right was given from outside."""
        post = await station(sim)
        hear(post, lambda: record(trusted=True))
        scope = sim.scope(hook_rules=[GPU1])
        await post.becomes(scope, State.PROTECTED)
        assert post.entitled(scope) == {GPU1}


class TestAgain:
    """What is left when the files cannot be read again."""

    @pytest.mark.invariant(1)
    def test_distrust_outlives_another_error(self) -> None:
        """One that has left its group is not believed for its files' being unreadable for another reason now."""
        unreadable = RuntimeFileUnreadableError("others than root may write it")
        left = records._as_before(RuntimeRecord(), RuntimeRunError("it is not in it"))
        assert records._as_before(left, unreadable).trusted is False
        assert records._as_before(RuntimeRecord(), unreadable).trusted is None

    @pytest.mark.invariant(1)
    def test_what_the_hook_gave_is_gone(self) -> None:
        """By which numbers its request is met may have changed with the devices; the runtime's own rules have not."""
        by_hook = Grant(Rule.parse(GPU1), Source.REQUEST, "NVIDIA_VISIBLE_DEVICES=1")
        known = record(GPU0, trusted=True)
        both = replace(known, grants=(*known.grants, by_hook))
        expected = replace(known, trouble="no answer in 5 s")
        assert records._as_before(both, RuntimeFileError("no answer in 5 s")) == expected

    @pytest.mark.parametrize("path", [None, "/config.json"])
    async def test_after_five_minutes(self, sim: SimNode, station: Station, path: str | None) -> None:
        """Whatever stood in the way may be over, also where nothing was ever read; without files there is nothing."""
        post = await station(sim)
        scope = sim.scope()
        await post.until(lambda: scope.group in post.guard.scopes, "the scope was not seen")
        await post.assembly.watch.idle()
        known, parts = post.of(scope), post.guard.parts
        known.vacant = known.premature = known.early = False
        known.generation = parts.guarded.generation
        known.consulted = time.monotonic() - 290.0
        known.known_since = known.consulted - 20.0
        known.record = RuntimeRecord(path=path, trouble="no answer in 5 s")
        assert not records.due(parts, known)
        known.consulted, known.known_since = known.consulted - 20.0, known.known_since - 20.0
        assert records.due(parts, known)
        known.record = RuntimeRecord(path=path)
        assert not records.due(parts, known)
        known.consulted = time.monotonic() - 20.0
        for late, due in ((False, False), (True, True)):  # of the request alone
            known.record = RuntimeRecord(path=path, late=late)
            assert records.due(parts, known) is due

    async def test_soon_where_they_came_too_late(self, sim: SimNode, station: Station) -> None:
        """An ordinary container is not believed meanwhile; the reader refuses at once for as long as it hangs."""
        post = await station(sim)
        scope = sim.scope()
        await post.until(lambda: scope.group in post.guard.scopes, "the scope was not seen")
        await post.assembly.watch.idle()
        known, parts = post.of(scope), post.guard.parts
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(parts.records, "read", _late)
            await records._read(parts, post.guard.policy, known)
        assert (known.record.late, known.record.trouble) == (True, "/config.json: no answer in 5 s")
        known.vacant = known.premature = known.early = False
        known.known_since = time.monotonic() - 1000.0
        known.consulted = time.monotonic() - 10.0
        assert not records.due(parts, known)
        known.consulted -= 10.0
        assert records.due(parts, known)
        await records._read(parts, post.guard.policy, known)
        assert not known.record.late


@pytest.mark.invariant(1)
async def test_another_driver_has_the_number(sim: SimNode, station: Station) -> None:
    """The container is stale, its rule is told as excess, and a reload takes it for good."""
    post = await station(sim)
    hear(post, RuntimeRecord)
    scope = sim.scope(hook_rules=[GPU0])
    await post.becomes(scope, State.PROTECTED)
    of_nvidia(post, scope)
    now(post, scope, ("c", 195, "other"), ("c", 300, "nvidia"))
    await post.becomes(scope, State.STALE)
    assert post.events("stale")[0]["devices"] == ["/dev/nvidia0"]
    assert post.events("excess")[0]["devices"] == ["/dev/nvidia0"]
    scope.write_rules([GPU0], verb="deny")
    await post.rounds(10)
    assert not has(scope, GPU0)


@pytest.mark.invariant(1)
async def test_its_driver_is_away(sim: SimNode, station: Station) -> None:
    """Its number may be another's next: what is lost meanwhile comes back when the driver does, under its number."""
    post = await station(sim)
    hear(post, RuntimeRecord)
    scope = sim.scope(hook_rules=[GPU0])
    await post.becomes(scope, State.PROTECTED)
    of_nvidia(post, scope)
    now(post, scope)
    await post.until(lambda: not post.of(scope).owed, "it is given back all the same")
    scope.write_rules([GPU0], verb="deny")
    await post.rounds(10)
    assert not has(scope, GPU0)
    now(post, scope, ("c", 195, "nvidia"))
    await post.until(lambda: has(scope, GPU0), "it did not come back")


async def at_rest(sim: SimNode, station: Station) -> tuple[Post, SimScope]:
    """Return a guard that looks when it is told to, and a container that it has under its protection."""
    scope = sim.scope(hook_rules=[GPU0])
    post = await station(sim, {"guard": {"poll_interval": NEVER}})
    await post.becomes(scope, State.PROTECTED)
    await post.quiet()
    return post, scope


@pytest.mark.parametrize("writable", [True, False], ids=["v1", "v2"])
async def test_in_another_group_of_the_v1_hierarchy(
    sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch, writable: bool
) -> None:
    """On cgroup v2 that says nothing of the container, and is no reason to read its files again."""
    post, scope = await at_rest(sim, station)
    monkeypatch.setattr(post.guard.parts.devices, "writable", writable)
    said = hear(post, lambda: record(GPU0, elsewhere="/a.slice"))
    found = post.of(scope)
    found.known_since, found.consulted = time.monotonic() - 3600, time.monotonic() - 1800
    post.guard.parts.guarded.generation += 1
    await records.consult(post.guard.parts, post.guard.policy, found)
    assert (said.asked, found.record.elsewhere) == (1, "/a.slice" if writable else None)
    found.consulted -= 3600
    assert records.due(post.guard.parts, found) is writable


async def test_what_came_late_is_waited_for_before_anything_is_declared(sim: SimNode, station: Station) -> None:
    """It tells what may be declared along; what is lost is given back at once all the same."""
    post, scope = await at_rest(sim, station)
    found = post.of(scope)
    found.deeds, found.plan = [], Plan(declare=(ENTRY,))
    found.record, found.known_since = replace(found.record, late=True, trouble="no answer in 5 s"), time.monotonic()
    assert not await act.declare(post.guard.parts, post.guard.policy, found)
    assert found.deeds == []
    found.known_since -= 120.0
    assert await act.declare(post.guard.parts, post.guard.policy, found)
    assert found.deeds == [f"declare {ENTRY}"]


@pytest.mark.invariant(4)
async def test_in_another_group_nothing_is_told_as_repaired(sim: SimNode, station: Station) -> None:
    """Its own list says nothing of it: an outage that was noted is not over by that."""
    post, scope = await at_rest(sim, station)
    found = post.of(scope)
    found.outage = Outage(None, frozenset({Rule.parse(GPU0)}), Cause())
    found.record = replace(found.record, elsewhere="/a.slice")
    post.assembly.watch.want(scope.group, fresh=True)
    await post.assembly.watch.idle()
    assert (found.state, post.events("repaired")) == (State.OPAQUE, [])


async def _late(_: Scope) -> RuntimeRecord:
    raise RuntimeFileLateError("/config.json: no answer in 5 s")
