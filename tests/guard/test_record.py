"""What is told to the journal and to Prometheus: each thing once, the loss before the repair."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Optional

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gpuguard.errors import GpuguardError
from gpuguard.guard.mend import Deed
from gpuguard.guard.record import Recorder
from gpuguard.guard.scope import Outage, Scope
from gpuguard.model.cause import SYSTEMD, Cause
from gpuguard.model.plan import Futile, Plan
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict
from gpuguard.report.metrics import Method, Metrics
from tests.guard.log import Entry, capturing_log
from tests.guard.made import GPU0, GPU1, ID, UNIT, entitled, scope
from tests.model.looks import declaration, rules

BY_RELOAD = Cause("reload", SYSTEMD, since=90.0)
AT_RISK = Verdict(State.AT_RISK, "systemd does not know these devices", at_risk=rules(GPU0))
PROTECTED = Verdict(State.PROTECTED)


class Told:
    """A recorder, and what it has told."""

    def __init__(self) -> None:
        log, self.log = capturing_log()
        self.metrics = Metrics()
        self.recorder = Recorder(self.metrics, log, lambda rule: f"/dev/nvidia{rule.minor}")

    def heir(self) -> Recorder:
        """Return a recorder that takes over."""
        heir = Recorder(self.metrics, self.recorder.log, self.recorder.node_of)
        heir.take_over(self.recorder)
        return heir

    def kinds(self) -> list[str]:
        """Return the kinds of events, in order."""
        return [entry["kind"] for entry in self.log]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        samples = (
            sample
            for family in text_string_to_metric_families(self.metrics.render()[1].decode())
            for sample in family.samples
        )
        return sum(one.value for one in samples if one.name == name and labels.items() <= one.labels.items())


@pytest.fixture
def told() -> Told:
    """Return a recorder that has told nothing."""
    return Told()


def a_scope(verdict: Verdict = PROTECTED, *, settled: bool = True, outage: Optional[Outage] = None) -> Scope:
    """Return a container with one GPU."""
    it = scope(known=entitled(GPU0, settled=settled), verdict=verdict)
    it.outage = outage
    return it


def written(*lines: str) -> Plan:
    """Return the plan to write rules back."""
    return Plan(tuple(rules(*lines)), tuple(rules(*lines)))


def without(entry: Entry, *keys: str) -> dict[str, Any]:
    """Return an entry without some of its fields."""
    return {key: value for key, value in entry.items() if key not in keys}


class TestFound:
    """A container that is guarded from now on."""

    def test_is_told_once_when_it_has_settled(self, told: Told) -> None:
        """Neither while it settles nor again at later looks."""
        it = a_scope(Verdict(State.SETTLING), settled=False)
        told.recorder.judged(it, 100.0)
        assert told.log == []
        it.entitled, it.verdict = entitled(GPU0), PROTECTED
        for _ in range(3):
            told.recorder.judged(it, 100.0)
        (entry,) = told.log
        assert without(entry, "event", "log_level") == {
            "kind": "found",
            "scope": UNIT,
            "container": ID,
            "runtime": "docker",
            "state": "protected",
            "devices": ["/dev/nvidia0"],
        }

    def test_is_told_of_the_next_one_of_that_inode(self, told: Told) -> None:
        """After its end everything begins anew."""
        it = a_scope()
        told.recorder.judged(it, 100.0)
        told.recorder.gone(it)
        told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "gone", "found"]

    def test_of_a_scope_without_devices_nothing_is_told(self, told: Told) -> None:
        """A container without an entitlement is no news."""
        told.recorder.judged(scope(State.UNRESTRICTED), 100.0)
        assert told.log == []


class TestLoss:
    """A loss and its end."""

    def test_is_told_and_counted_once(self, told: Told) -> None:
        """However many looks a loss lasts, it is one drift and one event, with its cause."""
        it = a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=Outage(99.0, rules(GPU0), BY_RELOAD))
        for _ in range(3):
            told.recorder.judged(it, 100.0)
        lost = told.log[-1]
        assert told.kinds() == ["found", "lost"]
        assert (lost["cause"], lost["writer"], lost["devices"]) == ("reload", "systemd", ["/dev/nvidia0"])
        assert told.value("gpuguard_drift_total", kind="lost", cause="reload", writer="systemd") == 1

    def test_its_end_comes_after_it(self, told: Told) -> None:
        """A loss that was mended within one look is told before its repair, with its length."""
        it = a_scope()
        told.recorder.healed(it, Outage(99.0, rules(GPU0), BY_RELOAD), 99.0025)
        assert told.kinds() == ["lost", "repaired"]
        assert told.log[-1]["outage_usec"] == 2500
        assert "restored after 2.5 ms" in told.log[-1]["event"]
        assert told.value("gpuguard_outage_seconds_count") == 1
        assert told.value("gpuguard_outage_seconds_sum") == pytest.approx(0.0025)

    def test_of_unknown_length(self, told: Told) -> None:
        """An outage that began before anybody looked has no length, neither in the log nor in the histogram."""
        told.recorder.healed(a_scope(), Outage(None, rules(GPU0), Cause()), 99.0)
        assert "outage_usec" not in told.log[-1]
        assert told.value("gpuguard_outage_seconds_count") == 0

    def test_the_next_one_is_told_again(self, told: Told) -> None:
        """A second loss is a second drift and a second pair of events."""
        it = a_scope()
        for now in (99.0, 200.0):
            told.recorder.healed(it, Outage(now, rules(GPU0), BY_RELOAD), now + 1)
        assert told.kinds() == ["lost", "repaired"] * 2
        assert told.value("gpuguard_drift_total", kind="lost") == 2
        assert told.value("gpuguard_outage_seconds_count") == 2


class TestDeeds:
    """What was done."""

    def test_what_went_well_is_counted_and_not_told(self, told: Told) -> None:
        """A deed that worked is a number; its consequence will be told."""
        told.recorder.done(a_scope(), Deed("write", 0.0001))
        assert told.log == []
        assert told.value("gpuguard_repairs_total", method="write", result="ok") == 1
        assert told.value("gpuguard_repair_seconds_sum", method="write") == pytest.approx(0.0001)

    @pytest.mark.invariant(3)
    @pytest.mark.parametrize(("method", "kind"), [("write", "repair_failed"), ("declare", "declare_failed")])
    def test_a_failure_is_counted_each_time_and_told_once(self, told: Told, method: Method, kind: str) -> None:
        """The same failure again is counted and not told, another one is told, and never a repair."""
        it = a_scope(Verdict(State.LOST, lost=rules(GPU0), at_risk=rules(GPU0)))
        it.plan = written(GPU0) if method == "write" else Plan()
        for reason in ("denied", "denied", "gone", "denied"):
            told.recorder.done(it, Deed(method, 0.1, reason))
        assert told.kinds() == [kind] * 3
        assert [entry["reason"] for entry in told.log] == ["denied", "gone", "denied"]
        assert told.log[0]["devices"] == ["/dev/nvidia0"]
        assert told.value("gpuguard_repairs_total", method=method, result="failed") == 4

    def test_a_failure_comes_after_its_loss(self, told: Told) -> None:
        """Nobody hears that something could not be restored before it is said to be lost."""
        it = a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=Outage(99.0, rules(GPU0), BY_RELOAD))
        told.recorder.done(it, Deed("write", 0.1, "denied"))
        assert told.kinds() == ["lost", "repair_failed"]

    @pytest.mark.parametrize("at_risk", [rules(GPU0), frozenset()])
    def test_a_loss_that_a_declaration_does_not_end_is_one(self, told: Told, at_risk: frozenset[Rule]) -> None:
        """On cgroup v2 a declaration gives back what is lost, be it new to systemd or not."""
        it = a_scope(Verdict(State.LOST, "systemd's program denies it", lost=rules(GPU0), at_risk=at_risk))
        it.plan = Plan(tuple(rules(GPU0)), declare=declaration("/dev/char/195:0 rw").entries)
        told.recorder.done(it, Deed("declare", 0.1, "not in force"))
        it.plan = Plan(tuple(rules(GPU0)))
        told.recorder.judged(it, 100.0)
        assert told.kinds() == ["repair_failed", "found"]
        assert (told.log[0]["devices"], told.log[0]["reason"]) == (["/dev/nvidia0"], "not in force")

    def test_a_declaration_is_told_when_it_holds(self, told: Told) -> None:
        """`declared` is said once systemd was seen to declare, with the devices that it did not know before."""
        it = a_scope(AT_RISK)
        told.recorder.done(it, Deed("declare", 0.1))
        assert told.log == []
        it.verdict = PROTECTED
        for _ in range(2):
            told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "declared"]
        assert told.log[-1]["devices"] == ["/dev/nvidia0"]

    @pytest.mark.invariant(3)
    def test_a_declaration_that_does_not_hold_is_not_told_as_one(self, told: Told) -> None:
        """When systemd answered well and still does not declare, that is a failure."""
        it = a_scope(AT_RISK)
        told.recorder.done(it, Deed("declare", 0.1))
        it.futile = Futile(declaration(), rules(GPU0))
        told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "declare_failed"]
        assert told.log[-1]["reason"] == "systemd does not know these devices"


class TestHopeless:
    """A loss against which nothing can be done: on cgroup v2, where a program that is not systemd's denies."""

    BLOCKED = Verdict(State.LOST, "blocked: program 7 on / denies it", lost=rules(GPU0), blocked=rules(GPU0))

    def test_is_told_once_and_again_with_another_reason(self, told: Told) -> None:
        """With the devices and the reason; nothing was done, so that nothing is counted as a repair."""
        it = a_scope(self.BLOCKED, outage=Outage(99.0, rules(GPU0), Cause()))
        it.plan = Plan(tuple(rules(GPU0)))
        for now in (100.0, 105.0):
            told.recorder.judged(it, now)
        assert told.kinds() == ["found", "lost", "repair_failed"]
        assert "could not be restored: /dev/nvidia0: blocked: program 7 on / denies it" in told.log[-1]["event"]
        assert (told.log[-1]["log_level"], told.value("gpuguard_repairs_total")) == ("error", 0)
        it.verdict = replace(self.BLOCKED, reason="blocked: program 8 on / denies it")
        told.recorder.judged(it, 110.0)
        assert told.kinds()[3:] == ["repair_failed"]
        told.heir().judged(it, 115.0)
        assert len(told.log) == 4

    def test_of_a_part(self, told: Told) -> None:
        """When the rest is given back, what stays lost is told; the next such loss is told again."""
        it = a_scope(Verdict(State.PARTIAL, "blocked: x", lost=rules(GPU0, GPU1), blocked=rules(GPU1)))
        it.plan = Plan(tuple(rules(GPU0, GPU1)), declare=declaration("/dev/char/195:0 rw").entries)
        told.recorder.done(it, Deed("declare", 0.1))
        it.verdict = blocked = Verdict(State.PARTIAL, "blocked: x", lost=rules(GPU1), blocked=rules(GPU1))
        it.plan = Plan(tuple(rules(GPU1)))
        told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "repair_failed"]
        assert told.log[-1]["devices"] == ["/dev/nvidia1"]
        for verdict in (PROTECTED, blocked):
            it.verdict = verdict
            told.recorder.judged(it, 101.0)
        assert told.kinds()[2:] == ["repair_failed"]

    def test_is_not_what_a_declaration_was_for(self, told: Told) -> None:
        """One device is blocked, another one at risk: it is that one which could not be declared."""
        it = a_scope(Verdict(State.PARTIAL, "x", lost=rules(GPU0), blocked=rules(GPU0), at_risk=rules(GPU1)))
        it.plan = Plan(tuple(rules(GPU0)), declare=declaration("/dev/char/195:1 rw").entries)
        told.recorder.done(it, Deed("declare", 0.1, "systemd refuses"))
        assert (told.kinds(), told.log[0]["devices"]) == (["declare_failed"], ["/dev/nvidia1"])

    def test_not_while_something_is_to_be_done(self, told: Told) -> None:
        """What the back-off or observe mode defers has its own entry."""
        it = a_scope(Verdict(State.LOST, "systemd's program denies it", lost=rules(GPU0), at_risk=rules(GPU0)))
        it.plan = Plan(tuple(rules(GPU0)), declare=declaration("/dev/char/195:0 rw").entries)
        told.recorder.observed(it)
        told.recorder.judged(it, 100.0)
        assert told.kinds() == ["observed", "found"]
        assert "would have given back /dev/nvidia0" in told.log[0]["event"]


class TestStates:
    """States that are no loss."""

    def test_at_risk_is_told_once_and_again_with_another_reason(self, told: Told) -> None:
        """A container at risk is one drift; a new reason is news, the same one is not."""
        it = a_scope(AT_RISK)
        for reason in ("memory", "memory", "disk"):
            it.verdict = Verdict(State.AT_RISK, reason, at_risk=rules(GPU0))
            told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "at_risk", "at_risk"]
        assert told.value("gpuguard_drift_total", kind="at_risk") == 1

    def test_what_has_no_spelling_cannot_be_declared(self, told: Told) -> None:
        """At risk for want of a spelling is a failure to declare, with the rule."""
        it = a_scope(AT_RISK)
        it.plan = Plan(undeclarable=tuple(rules("c *:7 rw")))
        told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "declare_failed"]
        assert "no spelling for c *:7 rw" in told.log[-1]["event"]

    def test_systemd_s_silence_is_not_told_of_each_container(self, told: Told) -> None:
        """When systemd cannot be asked the source says so; the containers do not all say it again."""
        told.recorder.judged(a_scope(Verdict(State.AT_RISK, "systemd cannot be asked")), 100.0)
        assert told.kinds() == ["found"]
        assert told.value("gpuguard_drift_total") == 0

    def test_blindness_is_told_once(self, told: Told) -> None:
        """A list that cannot be read is told with the reason, and is no drift."""
        it = a_scope(Verdict(State.OPAQUE, "Input/output error"))
        for _ in range(2):
            told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "blind"]
        assert told.value("gpuguard_drift_total") == 0

    def test_excess_is_told_when_it_grows(self, told: Told) -> None:
        """Excess is told when it appears, not while it lasts, and again when there is more."""
        it = a_scope()
        for excess in (rules(GPU1), rules(GPU1), rules(GPU1, "c 195:2 rw"), rules(GPU1), rules(GPU1), frozenset()):
            it.verdict = Verdict(State.PROTECTED, excess=excess)
            told.recorder.judged(it, 100.0)
        assert told.kinds() == ["found", "excess", "excess"]
        assert told.value("gpuguard_drift_total", kind="excess") == 2

    def test_a_release_is_told(self, told: Told) -> None:
        """Devices that were released on purpose are named."""
        told.recorder.released(a_scope(), rules(GPU0))
        assert told.kinds() == ["released"]
        assert told.log[0]["devices"] == ["/dev/nvidia0"]


class TestRestraint:
    """What was not done."""

    def test_observe_mode_tells_each_deed_once(self, told: Told) -> None:
        """However the plan for a loss changes: what systemd knows is heard later, and a list may be unreadable."""
        it = a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=Outage(99.0, rules(GPU0), BY_RELOAD))
        writes, entries = written(GPU0), declaration("/dev/char/195:0 rw").entries
        for plan in (writes, writes, replace(writes, declare=entries), Plan(), replace(writes, look_again=True)):
            it.plan = plan
            if plan:
                told.recorder.observed(it)
            told.recorder.judged(it, 100.0)
        assert told.kinds() == ["lost", "observed", "found"]
        assert "would have given back /dev/nvidia0" in told.log[1]["event"]
        assert told.value("gpuguard_repairs_total") == 0

    def test_observe_mode_tells_what_is_new(self, told: Told) -> None:
        """One more device that is lost, and the next loss, are other deeds."""
        it = a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=Outage(99.0, rules(GPU0), BY_RELOAD))
        for lines in ((GPU0,), (GPU0, GPU1), (GPU1,)):
            it.plan = written(*lines)
            told.recorder.observed(it)
        assert told.kinds() == ["lost", "observed", "observed"]
        it.outage, it.plan, it.verdict = None, Plan(), PROTECTED
        told.recorder.judged(it, 101.0)
        it.outage, it.plan = Outage(102.0, rules(GPU0), BY_RELOAD), written(GPU0)
        told.recorder.observed(it)
        assert told.kinds()[-1] == "observed"

    def test_observe_mode_tells_what_it_would_have_declared(self, told: Told) -> None:
        """A declaration that was not made is told as one; after a loss, and its end, not again."""
        it = a_scope(AT_RISK)
        at_risk, lost = Plan(declare=declaration("/dev/char/195:0 rw").entries), written(GPU0)
        for plan in (at_risk, lost, at_risk):
            it.plan, it.outage = plan, Outage(99.0, rules(GPU0), BY_RELOAD) if plan is lost else None
            told.recorder.observed(it)
            told.recorder.judged(it, 100.0)
        assert "would have declared to systemd /dev/nvidia0" in told.log[0]["event"]
        assert told.kinds().count("observed") == 2
        it.verdict, it.plan = PROTECTED, Plan()
        told.recorder.judged(it, 101.0)
        it.verdict, it.plan = AT_RISK, at_risk
        told.recorder.observed(it)
        assert told.kinds().count("observed") == 3

    @pytest.mark.invariant(8)
    def test_a_fight_is_told_once_and_counted_each_time(self, told: Told) -> None:
        """Refused repairs are counted; the fight is told when it begins and when repairs are made again."""
        it = a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=Outage(99.0, rules(GPU0), BY_RELOAD))
        it.plan = written(GPU0)
        it.backoff.until = 130.0
        for now in (100.0, 105.0):
            told.recorder.refused(it)
            told.recorder.judged(it, now)
        told.recorder.judged(it, 130.0)
        assert told.kinds() == ["lost", "fight", "found", "fight_over"]
        assert "taken away again and again by systemd (daemon-reload): no repair for 30 s" in told.log[1]["event"]
        assert told.value("gpuguard_repairs_total", method="write", result="refused") == 2


class TestTakingOver:
    """A recorder that goes on where another one ended: the guard was built anew."""

    def test_nothing_is_told_again(self, told: Told) -> None:
        """What was told of a container, of a trouble and of a source stays told."""
        it = a_scope(AT_RISK)
        told.recorder.judged(it, 100.0)
        told.recorder.troubles.met("/a", GpuguardError("x"))
        told.recorder.sources.down("signals", "hung up")
        told.log.clear()
        heir = told.heir()
        heir.judged(a_scope(AT_RISK), 101.0)
        heir.troubles.met("/a", GpuguardError("x"))
        assert told.log == []
        heir.sources.up("signals")
        assert told.kinds() == ["source_up"]
        assert told.value("gpuguard_drift_total", kind="at_risk") == 1

    def test_a_loss_that_goes_on_is_one(self, told: Told) -> None:
        """It is told and counted once, and its end once."""
        outage = Outage(99.0, rules(GPU0), BY_RELOAD)
        told.recorder.judged(a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=outage), 100.0)
        heir = told.heir()
        heir.judged(a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=outage), 101.0)
        heir.healed(a_scope(), outage, 102.0)
        heir.judged(a_scope(), 102.0)
        assert told.kinds() == ["found", "lost", "repaired"]
        assert told.value("gpuguard_drift_total", kind="lost") == 1

    def test_a_loss_that_ended_meanwhile_has_its_end(self, told: Told) -> None:
        """Its length is not known, and the next one is a new one."""
        outage = Outage(99.0, rules(GPU0), BY_RELOAD)
        told.recorder.judged(a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=outage), 100.0)
        heir = told.heir()
        for _ in range(2):
            heir.judged(a_scope(), 101.0)
        assert told.kinds() == ["found", "lost", "repaired"]
        assert "outage_usec" not in told.log[-1]
        heir.judged(a_scope(Verdict(State.LOST, lost=rules(GPU0)), outage=outage), 103.0)
        assert told.kinds()[3:] == ["lost"]

    @pytest.mark.invariant(10)
    def test_who_has_gone_meanwhile_is_forgotten(self, told: Told) -> None:
        """A container that ended between two guards leaves nothing behind."""
        told.recorder.judged(a_scope(), 100.0)
        heir = told.heir()
        heir.keep_only([7])
        assert list(heir._told) == [7]
        heir.keep_only([])
        assert heir._told == {}


class TestRest:
    """Sources, troubles and faults."""

    def test_a_source_that_comes_and_goes(self, told: Told) -> None:
        """The first start is no news; an end is, and the return after it."""
        told.recorder.sources.up("signals")
        assert (told.log, told.value("gpuguard_source_up", source="signals")) == ([], 1)
        told.recorder.sources.down("signals", "hung up")
        assert told.value("gpuguard_source_up", source="signals") == 0
        told.recorder.sources.up("signals")
        assert told.kinds() == ["source_down", "source_up"]

    def test_a_source_that_rests_often_is_told_of_once(self, told: Told) -> None:
        """Where very many programs are started the source of them rests again and again."""
        for _ in range(20):
            told.recorder.sources.down("executions", "too many")
            told.recorder.sources.up("executions")
        assert told.kinds() == ["source_down", "source_up"]

    def test_lost_events_are_told_of_once_in_a_while(self, told: Told) -> None:
        """Who makes very many events makes no more entries than others."""
        for _ in range(20):
            told.recorder.sources.lost("sentinel")
        assert told.kinds() == ["events_lost"]

    def test_which_sources_work(self, told: Told) -> None:
        """The report names each source that was heard of, and why one does not work."""
        told.recorder.sources.up("signals")
        told.recorder.sources.down("monitor", "hung up")
        reports = [(one.name, one.up, one.reason) for one in told.recorder.sources.report()]
        assert reports == [("monitor", False, "hung up"), ("signals", True, None)]

    @pytest.mark.invariant(10)
    def test_what_was_told_is_forgotten_with_the_scope(self, told: Told) -> None:
        """Containers that come and go leave nothing behind."""
        it = a_scope()
        told.recorder.judged(it, 100.0)
        told.recorder.troubles.met(it.target.control_group, GpuguardError("x"))
        told.recorder.gone(it)
        assert (told.recorder._told, told.recorder.troubles._met) == ({}, {})

    def test_a_left_shield(self, told: Told) -> None:
        """It is told with its scope."""
        told.recorder.shield_removed(a_scope())
        assert told.log[0]["scope"] == UNIT
