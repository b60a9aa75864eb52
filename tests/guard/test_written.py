"""What the guard makes of what the sentinel tells."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any, Optional

import pytest

from gpuguard.guard import written
from gpuguard.guard.clock import Clock
from gpuguard.guard.watch import Watch
from gpuguard.guard.written import Writes
from gpuguard.model.cause import SYSTEMD
from gpuguard.model.device_list import Payload
from gpuguard.model.nested import Nested
from gpuguard.model.observation import Observation
from gpuguard.model.process import Process
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict
from gpuguard.model.write import NOT_RUNNING, ProgramsChanged, Standing, Write
from gpuguard.sentinel.wire import Overflow
from gpuguard.systemd.events import Called
from tests.guard.made import GPU0, GPU1, GROUP, UNIT, entitled, scope
from tests.guard.post import Post
from tests.lab.sim.node import SimNode
from tests.model.looks import rules
from tests.report.support import until

BASICS = "c 5:0 rwm"
ADMIN = Process(41, "bash", "/usr/bin/bash", control_group="/user.slice/session-3.scope", native=True)
RELOADER = Process(70, "systemctl", "/usr/bin/systemctl", ("systemctl", "daemon-reload"), native=True)


class Desk:
    """The writes of a guard that knows one scope; what looks it asks for is kept, and nobody looks."""

    def __init__(self, post: Post) -> None:
        self.post = post
        self.looks: list[str] = []
        self.all = 0
        guard = post.guard
        self.scope = scope(State.PROTECTED, known=entitled(GPU0, GPU1), effective=RuleSet.of(BASICS, GPU0, GPU1))
        guard.scopes[GROUP] = self.scope
        self.clock = Clock(guard, Watch(self.look), 300.0, 1.0)
        self.ended: dict[int, tuple[Process, ...]] = {}
        self.writes = Writes(
            guard, Watch(self.look), self.clock, self.look_at_all, lambda pid, _: self.ended.get(pid, ())
        )

    async def look(self, control_group: str, _fresh: bool) -> None:
        """Keep account of a look."""
        self.looks.append(control_group)

    def look_at_all(self) -> None:
        """Keep account of a look at everything."""
        self.all += 1

    async def take(self, write: Write) -> list[str]:
        """Take a write; return the looks that it led to at once."""
        self.looks.clear()
        self.writes.take(write)
        await asyncio.sleep(0)
        return self.looks

    async def told(self, *kinds: str) -> Mapping[str, Any]:
        """Wait for an entry of one of these kinds."""
        await until(lambda: bool(self.post.events(*kinds)))
        return self.post.events(*kinds)[-1]


@pytest.fixture
async def desk(sim: SimNode) -> AsyncIterator[Desk]:
    """Return a desk."""
    post = Post(sim)
    post.build()
    desk = Desk(post)
    yield desk
    desk.writes.close()
    await post.stop()


def healed(writer: Optional[Process] = SYSTEMD, *requester: Process, restored: tuple[str, ...] = (GPU0,)) -> Write:
    """Return a loss that the sentinel has given back within 200 µs, just now."""
    now = time.monotonic()
    return Write(
        GROUP, 7, now, True, writer, requester,  # noqa: FBT003
        before=RuleSet.of(BASICS, GPU0, GPU1), after=RuleSet(), restored=rules(*restored), whole_at=now + 0.0002,
    )  # fmt: skip


def changed(writer: Optional[Process], *after: str, denied: bool = True) -> Write:
    """Return a write after which a list is another one."""
    before, pid = RuleSet.of(BASICS, GPU0, GPU1), writer.pid if writer is not None else 0
    return Write(GROUP, 7, time.monotonic(), denied, writer, before=before, after=RuleSet.of(*after), pid=pid)


class TestHealed:
    """Losses that were given back at the write."""

    async def test_is_told_at_once_where_the_requester_was_seen(self, desk: Desk) -> None:
        """Lost, then restored, by whom and for whom, and for how long."""
        assert await desk.take(healed(SYSTEMD, RELOADER, ADMIN)) == [GROUP]
        lost, restored = desk.post.events("lost", "repaired")
        assert (lost["kind"], lost["state"], lost["cause"], lost["writer"]) == ("lost", "partial", "reload", "systemd")
        assert lost["requester"] == "systemctl daemon-reload ← bash ← session-3.scope"
        assert (restored["kind"], restored["devices"], restored["outage_usec"]) == ("repaired", ["/dev/nvidia0"], 200)
        assert desk.post.value("gpuguard_drift_total", kind="lost", cause="reload", writer="systemd") == 1
        assert desk.post.value("gpuguard_drift_requests_total", cause="reload", requester="session-*.scope") == 1
        assert desk.post.value("gpuguard_repairs_total", method="write", result="ok") == 1
        assert desk.post.value("gpuguard_outage_seconds_sum") == pytest.approx(0.0002)

    async def test_waits_for_what_systemd_tells(self, desk: Desk) -> None:
        """Where nobody was seen waiting it is told when the reload that is under way is over."""
        await desk.take(healed())
        desk.post.guard.parts.causes.reload_began(time.monotonic() - 60.0)
        await asyncio.sleep(0.35)
        assert not desk.post.events("lost")
        desk.post.guard.parts.causes.reload_ended(time.monotonic())
        lost = await desk.told("lost")
        assert (lost["cause"], lost["writer"]) == ("reload", "systemd")

    async def test_does_not_wait_for_ever(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        """A reload that has no end is told of as it stands."""
        monkeypatch.setattr(written, "_LONGEST_GRACE", 0.2)
        desk.post.guard.parts.causes.reload_began(time.monotonic() - 1.0)
        await desk.take(healed())
        assert (await desk.told("lost"))["cause"] == "reload"

    async def test_waits_for_the_bus_where_it_is_not_known_what_was_set(self, desk: Desk) -> None:
        """A runtime's update is known by its command line; what it sets the monitor tells, a little later."""
        update = Process(71, "systemctl", "/usr/bin/systemctl", ("systemctl", "set-property", UNIT), native=True)
        await desk.take(healed(SYSTEMD, update))
        assert not desk.post.events("lost")
        call = Called("SetUnitProperties", UNIT, ("CPUShares",), ":1.9", 71)
        desk.post.guard.parts.causes.called(call, (update,), time.monotonic())
        assert (await desk.told("lost"))["property"] == ["CPUShares"]

    async def test_is_not_put_down_to_an_earlier_call(self, desk: Desk) -> None:
        """A runtime calls when it creates a container, and again at an update: the bus tells of that later."""
        creator = Process(71, "runc", "/usr/bin/runc", ("runc", "create", "x"), native=True)
        update = Process(72, "runc", "/usr/bin/runc", ("runc", "update", "x"), native=True)
        call = Called("SetUnitProperties", UNIT, ("DevicePolicy",), ":1.8", 71)
        desk.post.guard.parts.causes.called(call, (creator,), time.monotonic() - 1.5)
        await desk.take(healed())
        assert not desk.post.events("lost")
        call = Called("SetUnitProperties", UNIT, ("CPUShares",), ":1.9", 72)
        desk.post.guard.parts.causes.called(call, (update,), time.monotonic())
        lost = await desk.told("lost")
        assert (lost["cause"], lost["property"], lost["requester"]) == ("runtime", ["CPUShares"], "runc update")

    async def test_is_told_at_once_with_the_call_that_took_it(self, desk: Desk) -> None:
        """The bus has told of it already."""
        call = Called("SetUnitProperties", UNIT, ("CPUShares",), ":1.9", 71)
        desk.post.guard.parts.causes.called(call, (ADMIN,), time.monotonic())
        await desk.take(healed())
        assert desk.post.events("lost")[0]["property"] == ["CPUShares"]

    async def test_was_whole_again_then(self, desk: Desk) -> None:
        """What happened before cannot have taken what is missing later; an older one puts nothing back."""
        write = healed(SYSTEMD, RELOADER)
        await desk.take(write)
        assert desk.scope.whole_at == write.whole_at
        await desk.take(replace(write, whole_at=write.at - 9.0))
        assert desk.scope.whole_at == write.whole_at

    async def test_of_an_unknown_writer(self, desk: Desk) -> None:
        """Unknown stays unknown, and counts as a repair that a fight may be made of."""
        await desk.take(healed(None))
        lost = await desk.told("lost")
        assert (lost["cause"], "writer" in lost) == ("unknown", False)
        assert len(desk.scope.backoff._repairs) == 1

    async def test_after_systemd_is_no_fight(self, desk: Desk) -> None:
        """However often systemd rewrites a list, that is no fight."""
        for _ in range(20):
            await desk.take(healed(SYSTEMD, RELOADER))
        assert desk.scope.backoff.may_repair(time.monotonic())
        assert desk.scope.entitled is not None
        assert desk.scope.entitled.struck

    async def test_of_a_scope_that_took_the_name(self, desk: Desk) -> None:
        """Another inode is another scope."""
        assert await desk.take(replace(healed(SYSTEMD, RELOADER), inode=8)) == []
        assert not desk.post.events("lost")

    async def test_what_waits_is_told_at_the_end(self, desk: Desk) -> None:
        """A stop, or other settings, in the middle of a reload: who took it stays as unknown as it is."""
        desk.post.guard.parts.causes.reload_began(time.monotonic() + 60.0)
        await desk.take(healed())
        desk.writes.close()
        assert [entry["kind"] for entry in desk.post.events("lost", "repaired")] == ["lost", "repaired"]
        desk.writes.close()
        assert len(desk.post.events("lost")) == 1

    async def test_safe_is_told_after_lost(self, desk: Desk) -> None:
        """What followed a loss is not told before it."""
        await desk.take(healed())
        desk.post.guard.parts.recorder._of(desk.scope).declared = tuple(rules(GPU0))
        desk.post.guard.parts.recorder.judged(desk.scope, time.monotonic())
        assert not desk.post.events("declared")
        await desk.told("declared")
        assert [entry["kind"] for entry in desk.post.events("lost", "repaired", "declared")] == [
            *("lost", "repaired", "declared")
        ]

    async def test_safe_is_not_forgotten_in_between(self, desk: Desk) -> None:
        """A look that was caught in a rewrite has not seen it whole: the next one that has tells."""
        recorder = desk.post.guard.parts.recorder
        recorder._of(desk.scope).declared = tuple(rules(GPU0))
        desk.scope.verdict = Verdict(State.PARTIAL, lost=rules(GPU0))
        await desk.take(healed(SYSTEMD, RELOADER))
        assert not desk.post.events("declared")
        desk.scope.verdict = Verdict(State.PROTECTED)
        recorder.judged(desk.scope, time.monotonic())
        assert desk.post.events("declared")

    @pytest.mark.invariant(10)
    async def test_a_flood_is_bounded(self, desk: Desk) -> None:
        """However many writes wait to be told: no more than some thousand."""
        write = changed(None, BASICS, GPU0, GPU1, denied=False)
        for _ in range(6000):
            desk.writes.take(write)
        assert len(desk.writes._later) <= 4096
        desk.writes.close()
        assert not desk.writes._later


class TestGroupsInside:
    """What a write to the container's list means for the groups that the container has made."""

    KNOWN = (Nested("docker", 8, rules(GPU0, GPU1)), Nested("step", 9, rules(GPU1)))

    @pytest.mark.parametrize(
        ("write", "owed"),
        [
            pytest.param(
                replace(healed(), after=RuleSet.of(GPU1)), [rules(GPU0), rules()], id="given back by the sentinel"
            ),
            pytest.param(changed(None, BASICS, GPU1), [rules(GPU0), rules()], id="by nobody known"),
            pytest.param(changed(SYSTEMD, BASICS), [rules(GPU0, GPU1), rules(GPU1)], id="by systemd"),
            pytest.param(changed(ADMIN, BASICS, GPU0, GPU1), [rules(), rules()], id="nothing was lost"),
        ],
    )
    async def test_they_are_owed_what_they_had_of_what_was_lost(
        self, desk: Desk, write: Write, owed: list[frozenset[Rule]]
    ) -> None:
        """Be it that the container has it back already."""
        desk.scope.entitled = replace(entitled(GPU0, GPU1), nested=self.KNOWN)
        await desk.take(write)
        assert desk.scope.entitled is not None
        assert [group.owed for group in desk.scope.entitled.nested] == owed

    async def test_they_are_owed_nothing_that_was_meant(self, desk: Desk) -> None:
        """And it is forgotten that they had it."""
        desk.scope.entitled = replace(entitled(GPU0, GPU1), nested=self.KNOWN)
        await desk.take(changed(ADMIN, BASICS, GPU1))
        assert desk.scope.entitled.nested == tuple(replace(group, rules=rules(GPU1)) for group in self.KNOWN)

    async def test_a_write_to_the_containers_own_group_is_one_to_its_list(self, desk: Desk) -> None:
        """As crun's: who takes something there on purpose has taken it from the container."""
        desk.scope.payload = Payload(f"{GROUP}/container", 8)
        inner = replace(changed(ADMIN, BASICS, GPU1), control_group=f"{GROUP}/container", inode=8)
        assert await desk.take(replace(inner, inode=9)) == []
        assert await desk.take(inner) == [GROUP]
        assert desk.scope.entitled is not None
        assert desk.scope.entitled.released == {"c 195:0"}


class TestOnPurpose:
    """What identified programs take and give."""

    async def test_what_is_taken_is_released(self, desk: Desk) -> None:
        """It is told by whom, kept in the ledger, and the sentinel gives it back no more."""
        assert await desk.take(changed(ADMIN, BASICS, GPU1)) == [GROUP]
        known = desk.scope.entitled
        assert known is not None
        assert (known.rules, known.released) == (rules(GPU1), frozenset({"c 195:0"}))
        (entry,) = desk.post.events("revoked")
        assert (entry["devices"], entry["writer"], entry["writer_unit"]) == (
            ["/dev/nvidia0"],
            "bash",
            "session-3.scope",
        )
        watched = desk.post.guard.parts.sentinel._watched[GROUP]
        assert watched.undeclared | watched.declared == rules(GPU1)
        (saved,), _ = desk.post.guard.parts.ledger.load()
        assert saved.released == {"c 195:0"}

    async def test_what_is_given_is_learnt(self, desk: Desk) -> None:
        """A rule more, with its very access; also of a device that was released before."""
        desk.scope.entitled = replace(entitled(GPU0), released=frozenset({"c 195:7"}))
        await desk.take(changed(ADMIN, BASICS, GPU0, GPU1, "c 195:7 r", denied=False))
        assert desk.scope.entitled.rules == rules(GPU0, "c 195:7 r")
        assert desk.scope.entitled.released == frozenset()
        assert desk.post.events("granted")

    @pytest.mark.invariant(1)
    async def test_a_writer_that_had_ended_is_named_and_has_meant_nothing(self, desk: Desk) -> None:
        """Its number may have been a container's since it was seen: what that wrote is neither given nor taken."""
        desk.ended[41] = (ADMIN,)
        await desk.take(replace(changed(ADMIN, BASICS, GPU1), writer=None))
        await desk.take(replace(changed(ADMIN, BASICS, GPU0, GPU1, "c 195:7 rw", denied=False), writer=None))
        assert desk.post.value("gpuguard_device_writes_total", writer="bash") == 2
        assert not desk.post.events("revoked", "granted")
        assert desk.scope.entitled == entitled(GPU0, GPU1)

    async def test_one_that_stays_unknown_takes_nothing_on_purpose(self, desk: Desk) -> None:
        """What is missing is a loss then: a look decides."""
        assert await desk.take(replace(changed(ADMIN, BASICS, GPU1), writer=None)) == [GROUP]
        assert desk.scope.entitled == entitled(GPU0, GPU1)


class TestOthers:
    """What is no write."""

    async def test_standing(self, desk: Desk) -> None:
        """How the sentinel runs is told once, and shown."""
        for _ in range(3):
            desk.writes.take(Standing("nice", "no budget"))
        assert len(desk.post.events("sentinel_standing")) == 1
        assert desk.post.value("gpuguard_sentinel_info", scheduling="nice") == 1
        desk.writes.take(Standing(NOT_RUNNING))
        sources = desk.post.guard.parts.recorder.sources
        assert (desk.post.value("gpuguard_sentinel_info"), sources.standing) == (0, None)
        desk.writes.take(Standing("nice", "no budget"))
        assert (len(desk.post.events("sentinel_standing")), sources.standing) == (1, Standing("nice", "no budget"))

    async def test_overflow(self, desk: Desk) -> None:
        """What was lost can be anything: everything is looked at."""
        desk.writes.take(Overflow())
        assert desk.all == 1
        assert desk.clock._hurried.is_set()
        assert desk.post.events("events_lost")

    async def test_hints_are_looked_after_soon_and_once_more(self, desk: Desk) -> None:
        """Programs change after the hint, and one hint is seldom alone; a stream of them piles up nothing."""
        rounds = 0

        def count() -> None:
            nonlocal rounds
            rounds += 1

        desk.clock.soon = count  # type: ignore[method-assign]
        for _ in range(1000):
            desk.writes.take(ProgramsChanged(time.monotonic(), "systemd", SYSTEMD))
        assert len(desk.writes._later) == 3
        await until(lambda: rounds == 6)
        await asyncio.sleep(0.15)
        assert rounds == 6

    async def test_a_fault_of_ours_is_told_and_ends_nothing(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        """The next message is taken as ever."""

        def fail(_write: Write) -> None:
            raise ZeroDivisionError("as if")

        with monkeypatch.context() as patch:
            patch.setattr(desk.post.guard.parts.causes, "wrote", fail)
            desk.writes.take(healed(SYSTEMD, RELOADER))
        (entry,) = desk.post.events("fault")
        assert entry["scope"] == desk.scope.target.unit
        await desk.take(healed(SYSTEMD, RELOADER))
        assert desk.post.events("repaired")

    @pytest.mark.parametrize("trouble", [{"refused": True}, {"error": "EPERM"}], ids=["fight", "error"])
    async def test_what_the_sentinel_could_not_do_is_looked_at(self, desk: Desk, trouble: dict[str, Any]) -> None:
        """However whole the list is by then; a write that takes nothing is no reason for a look."""
        harmless = changed(None, BASICS, GPU0, GPU1)
        assert await desk.take(harmless) == []
        assert await desk.take(replace(harmless, **trouble)) == [GROUP]

    async def test_the_last_writer_is_the_one_that_denied(self, desk: Desk) -> None:
        """Who allows what is there already has taken nothing."""
        await desk.take(changed(SYSTEMD, BASICS, GPU0, GPU1, denied=False))
        await until(lambda: desk.scope.last is not None)
        denies = replace(changed(SYSTEMD, BASICS, GPU0, GPU1), requester=(RELOADER,))
        await desk.take(denies)
        allows = replace(changed(SYSTEMD, BASICS, GPU0, GPU1, denied=False), requester=(ADMIN,))
        await desk.take(allows)
        await asyncio.sleep(0.35)
        assert desk.scope.last is not None
        assert desk.scope.last[1].requester == (RELOADER,)


class TestGrowing:
    """What is seen at a write while a container starts."""

    async def test_is_learnt_though_it_is_gone(self, desk: Desk) -> None:
        """A hook's rule that a reload has taken away before anybody looked is learnt provisionally, and looked for."""
        desk.scope.entitled = entitled(GPU0, settled=False)
        assert await desk.take(changed(SYSTEMD, BASICS)) == [GROUP]
        assert desk.scope.entitled.rules == rules(GPU0, GPU1)
        assert not desk.scope.entitled.settled

    async def test_is_learnt_of_a_scope_that_had_none(self, desk: Desk) -> None:
        """Also the first one."""
        desk.scope.entitled = None
        assert await desk.take(changed(None, BASICS, GPU1, denied=False)) == [GROUP]
        learnt = desk.post.guard.scopes[GROUP].entitled
        assert learnt is not None
        assert learnt.rules == rules(GPU0, GPU1)

    @pytest.mark.invariant(1)
    async def test_is_not_learnt_of_one_that_has_settled(self, desk: Desk) -> None:
        """What has settled does not grow by what the kernel's list happens to hold."""
        desk.scope.entitled = settled = entitled(GPU0)
        await desk.take(changed(SYSTEMD, BASICS, GPU0))
        assert desk.scope.entitled is settled

    @pytest.mark.invariant(1)
    async def test_is_not_learnt_of_what_the_container_wrote(self, desk: Desk) -> None:
        """Neither from its write nor by a look, be it before the news of the write or after it."""
        guard, desk.scope.entitled = desk.post.guard, entitled(GPU0, "c 195:1 r", settled=False)
        inside = Process(42, "sh", "/bin/sh", control_group=f"{GROUP}/below")
        for looks in (True, False):
            if looks:
                look = Observation(UNIT, GROUP, 7, 100.0, RuleSet.of(GPU0, GPU1, "c 195:7 rw"), None)
                learnt = guard._learn(desk.scope, look)
                assert learnt is not None
                assert learnt.rules == rules(GPU0, GPU1, "c 195:7 rw")
            wrote = changed(inside, BASICS, GPU0, GPU1, "c 195:7 rw", denied=False)
            await desk.take(replace(wrote, before=RuleSet.of(BASICS, GPU0, "c 195:1 r")))
            known = guard._learn(desk.scope, replace(look, at=100.5))
            assert known is not None
            assert known.rules == rules(GPU0, "c 195:1 r")

    async def test_is_learnt_of_a_hook_inside(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        """Before the container's own program has begun there are but the runtime's hooks in its group."""
        desk.scope.entitled = entitled(GPU0, settled=False)
        monkeypatch.setattr(desk.post.guard.parts.start_phase, "starting", lambda *_: True)
        inside = Process(42, "hook", "/usr/bin/hook", control_group=GROUP)
        wrote = changed(inside, BASICS, GPU0, GPU1, denied=False)
        await desk.take(replace(wrote, before=RuleSet.of(BASICS, GPU0)))
        assert desk.scope.entitled.rules == rules(GPU0, GPU1)

    @pytest.mark.invariant(1)
    async def test_is_not_learnt_of_one_inside_before_its_files_are_read(
        self, desk: Desk, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that has executed nothing can be the container's own doing: its files tell the first one."""
        desk.scope.entitled = entitled(GPU0, settled=False)
        desk.scope.premature = True
        monkeypatch.setattr(desk.post.guard.parts.start_phase, "starting", lambda *_: True)
        inside = Process(42, "python3", "/usr/bin/python3", control_group=GROUP)
        wrote = replace(changed(inside, BASICS, GPU0, GPU1, denied=False), before=RuleSet.of(BASICS, GPU0))
        await desk.take(wrote)
        assert desk.scope.entitled.rules == rules(GPU0)
        await desk.take(replace(wrote, writer=replace(inside, exe="/usr/bin/runc", control_group="/x", native=True)))
        assert desk.scope.entitled.rules == rules(GPU0, GPU1)

    @pytest.mark.invariant(5)
    async def test_is_not_learnt_of_a_service(self, desk: Desk) -> None:
        """The list before a write may be that of the service's last run."""
        desk.scope.entitled = known = entitled(GPU0, settled=False)
        desk.scope.target = replace(desk.scope.target, unit="gpu.service")
        await desk.take(changed(SYSTEMD, BASICS, GPU0))
        assert desk.scope.entitled is known

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("seen", [None, RuleSet(unrestricted=True)])
    async def test_is_not_learnt_of_no_list(self, desk: Desk, seen: Optional[RuleSet]) -> None:
        """A list that was not read, and one without a filter, teach nothing."""
        desk.scope.entitled = None
        await desk.take(Write(GROUP, 7, time.monotonic(), denied=False, before=seen, after=seen))
        assert desk.scope.entitled is None
