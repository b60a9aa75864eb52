"""Turn verdicts and deeds into metrics and journal entries: each thing once, and lost before repaired."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Optional

from structlog.typing import FilteringBoundLogger

from gpuguard.guard.blame import blame, state_without
from gpuguard.guard.mend import Deed
from gpuguard.guard.record_sources import SourceRecorder
from gpuguard.guard.record_trouble import TroubleRecorder
from gpuguard.guard.scope import Outage, Scope
from gpuguard.guard.told import Told, in_order, meant, owed, who
from gpuguard.model.cause import Cause
from gpuguard.model.requester import chain
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.write import Write
from gpuguard.report.clean import clean
from gpuguard.report.kinds import KINDS, emit
from gpuguard.report.metrics import Metrics

_MICROSECONDS = 1_000_000
# Of control groups that are named in one entry.
_MOST_GROUPS = 15
# What observe mode would have done.
_GIVEN_BACK, _DECLARED = "given back", "declared to systemd"


@dataclass
class Recorder:
    """Tells Prometheus and the journal. `node_of` names a rule's device node, such as /dev/nvidia0."""

    metrics: Metrics
    log: FilteringBoundLogger
    node_of: Callable[[Rule], Optional[str]]
    _told: dict[int, Told] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the sources, and troubles, told of in the same places."""
        self.sources = SourceRecorder(self.metrics, self.log)
        self.troubles = TroubleRecorder(self.log)

    def take_over(self, other: Recorder) -> None:
        """Go on from what another one has told: that is not told again."""
        self._told = dict(other._told)
        self.sources.take_over(other.sources)
        self.troubles.take_over(other.troubles)

    def keep_only(self, inodes: Iterable[int]) -> None:
        """Forget what was told of scopes that are not there any more, by their control groups' inodes."""
        kept = frozenset(inodes)
        self._told = {inode: told for inode, told in self._told.items() if inode in kept}

    def gone(self, scope: Scope) -> None:
        """Tell that a container has ended, if it was guarded."""
        self._told.pop(scope.target.inode, None)
        self.troubles.forget(scope.target.control_group)
        if scope.entitled is not None:
            emit(self.log, KINDS.gone, **who(scope))

    def done(self, scope: Scope, deed: Deed) -> None:
        """Tell what was done to a scope, unless it went as it should."""
        self._tell_loss(scope)
        self.metrics.repair(deed.method, deed.result, deed.seconds)
        told = self._of(scope)
        if deed.error is None:
            told.error = None
            if deed.method == "declare" and scope.verdict is not None:
                told.declared = in_order(scope.verdict.at_risk)
        elif deed.error != told.error:
            told.error = deed.error
            kind = KINDS.repair_failed if deed.method == "write" or owed(scope) else KINDS.declare_failed
            emit(self.log, kind, **who(scope), devices=self._names(meant(scope)), reason=deed.error)

    def healed(self, scope: Scope, outage: Outage, now: float) -> None:
        """Tell of an outage that is over."""
        self._lost(scope, outage)
        seconds = None if outage.since is None else max(0.0, now - outage.since)
        if seconds is not None:
            self.metrics.outage(seconds)
        told = self._of(scope)
        if told.outage is not None:  # perhaps by a guard before this one, which knew more
            outage = replace(outage, cause=told.outage.cause)
        told.outage = None
        told.error = None
        self._tell_end(scope, outage, seconds)

    def _tell_end(self, scope: Scope, outage: Outage, seconds: Optional[float]) -> None:
        emit(
            self.log,
            KINDS.repaired,
            **who(scope),
            **self._outage(outage),
            outage_usec=None if seconds is None else round(seconds * _MICROSECONDS),
        )

    def restored(self, write: Write) -> None:
        """Count what the sentinel has given back at once."""
        if write.lasted is not None:
            self.metrics.repair("write", "ok", write.lasted)
            self.metrics.outage(write.lasted)

    def healed_at_the_write(self, scope: Scope, write: Write, cause: Cause) -> None:
        """Tell of what was lost and given back by the sentinel at once, when it is known why."""
        outage = Outage(write.at, write.restored, cause)
        self._tell_of(scope, outage, state=state_without(scope, write.restored))
        self._tell_end(scope, outage, write.lasted)

    def on_purpose(self, scope: Scope, taken: Iterable[str], given: Iterable[Rule], cause: Cause) -> None:
        """Tell what somebody has taken from a container on purpose, or has given it."""
        fields = {**who(scope), **blame(cause)}
        nodes = [self.node_of(Rule.parse(f"{device} rwm")) or device for device in sorted(taken)]
        if nodes:
            emit(self.log, KINDS.revoked, **fields, devices=nodes)
        else:
            emit(self.log, KINDS.granted, **fields, devices=self._names(given))

    def observed(self, scope: Scope) -> None:
        """Tell what observe mode did not do."""
        self._tell_loss(scope)
        told = self._of(scope)
        deed, rules = _GIVEN_BACK if owed(scope) else _DECLARED, frozenset(meant(scope))
        known = told.observed.get(deed)
        if known is not None and rules <= known:
            return
        told.observed[deed] = rules | (known or frozenset())
        emit(self.log, KINDS.observed, **who(scope), deed=deed, devices=self._names(rules))

    def refused(self, scope: Scope) -> None:
        """Tell that the back-off forbids a repair: what is given back is taken away again and again.

        Unless it was never in force: that was told as the failure that it is.
        """
        self._tell_loss(scope)
        told = self._of(scope)
        if told.error is not None:
            return
        self.metrics.repair("write" if scope.plan.write else "declare", "refused", 0.0)
        if told.fighting:
            return
        told.fighting = True
        cause = {} if scope.outage is None else blame(scope.outage.cause)
        pause = f"{scope.backoff.pause:g} s"
        emit(self.log, KINDS.fight, **who(scope), **cause, devices=self._names(meant(scope)), pause=pause)

    def judged(self, scope: Scope, now: float) -> None:
        """Tell what is new about a scope when a look is over."""
        verdict, entitled = scope.verdict, scope.entitled
        if verdict is None:
            return
        told = self._of(scope)
        if entitled is not None and entitled.settled and not told.found:
            told.found = True
            emit(self.log, KINDS.found, **who(scope), devices=self._names(entitled.rules))
        self._tell_loss(scope)
        if told.outage is not None and scope.outage is None:  # it ended between two guards
            self.healed(scope, replace(told.outage, since=None), now)
        for deed, over in ((_GIVEN_BACK, scope.outage is None), (_DECLARED, scope.state is State.PROTECTED)):
            if over:
                told.observed.pop(deed, None)
        if told.fighting and scope.backoff.may_repair(now):
            told.fighting = False
            emit(self.log, KINDS.fight_over, **who(scope))
        if verdict.excess - told.excess:
            self.metrics.drift("excess", "unknown", None)
            emit(self.log, KINDS.excess, **who(scope), devices=self._names(verdict.excess))
        told.excess = verdict.excess
        self._tell_declared(scope, told)
        if scope.shielded and not told.shielded:
            told.shielded = True
            emit(self.log, KINDS.shielded, **who(scope))
        if (verdict.state, scope.reason) != (told.state, told.reason):
            self._tell_state(scope, told)
        told.state, told.reason = verdict.state, scope.reason

    def safe(self, scope: Scope) -> None:
        """Tell that systemd knows the devices now, which it did not; not before it is told that they were lost."""
        if scope.state is State.PROTECTED:
            self._tell_declared(scope, self._of(scope))

    def _tell_declared(self, scope: Scope, told: Told) -> None:
        if scope.untold and scope.state is State.PROTECTED:
            return
        declared, told.declared = told.declared, ()
        if declared and scope.state is State.PROTECTED:
            emit(self.log, KINDS.declared, **who(scope), devices=self._names(declared))

    def _tell_state(self, scope: Scope, told: Told) -> None:
        verdict = scope.verdict
        if verdict is None:
            return
        if verdict.state is State.STALE:
            self.metrics.drift("stale", "unknown", None)
            emit(self.log, KINDS.stale, **who(scope), devices=self._names(verdict.stale), reason=scope.reason)
        elif verdict.state is State.OPAQUE and scope.entitled is None and scope.effective is not None:
            emit(self.log, KINDS.unclear, **who(scope), reason=scope.reason)
        elif verdict.state is State.OPAQUE:
            emit(self.log, KINDS.blind, **who(scope), reason=scope.reason)
        elif verdict.state in {State.LOST, State.PARTIAL}:
            self._tell_hopeless(scope, told)
        elif verdict.state is State.AT_RISK and verdict.at_risk:
            if told.state is not State.AT_RISK:
                self.metrics.drift("at_risk", "unknown", None)
            kind = KINDS.declare_failed if scope.futile is not None or scope.plan.undeclarable else KINDS.at_risk
            kind = KINDS.shield_keeps if scope.kept else kind
            emit(self.log, kind, **who(scope), devices=self._names(verdict.at_risk), reason=scope.reason)

    def _tell_hopeless(self, scope: Scope, told: Told) -> None:
        """Tell that nothing can be done about a loss, as on cgroup v2; what was tried in vain is told by done()."""
        if scope.plan.lost and not scope.plan and told.error is None:
            names = self._names(scope.plan.lost)
            emit(self.log, KINDS.repair_failed, **who(scope), devices=names, reason=scope.reason)

    def shield_removed(self, scope: Scope) -> None:
        """Tell that a shield is gone: one that was there for good, or that nobody held up any more."""
        told = self._of(scope)
        emit(self.log, KINDS.unshielded if told.shielded else KINDS.shield_removed, **who(scope))
        told.shielded = False

    def released(self, scope: Scope, rules: Iterable[Rule]) -> None:
        """Tell that somebody had devices forgotten on purpose."""
        if scope.outage is None:
            self._of(scope).outage = None
        emit(self.log, KINDS.released, **who(scope), devices=self._names(rules))

    def restored_below(self, scope: Scope, rules: Iterable[Rule], groups: Sequence[str]) -> None:
        """Tell which control groups that the container has made got back what it had lost."""
        fields = {**who(scope), "devices": list(dict.fromkeys(self._names(rules)))}
        names = [clean(name) for name in groups[:_MOST_GROUPS]]
        more = [f"{len(groups) - _MOST_GROUPS} more"] if len(groups) > _MOST_GROUPS else []
        emit(self.log, KINDS.restored_below, **fields, groups=names + more)

    def _tell_loss(self, scope: Scope) -> None:
        if scope.outage is not None:
            self._lost(scope, scope.outage)

    def _lost(self, scope: Scope, outage: Outage) -> None:
        told = self._of(scope)
        if told.outage is not None:
            return
        told.outage = outage
        self._tell_of(scope, outage)

    def _tell_of(self, scope: Scope, outage: Outage, **other: Any) -> None:  # noqa: ANN401 - fields of a log
        self._count_loss(outage.cause)
        emit(self.log, KINDS.lost, **{**who(scope), **other}, **self._outage(outage))

    def _count_loss(self, cause: Cause) -> None:
        self.metrics.drift("lost", cause.cause, cause.program)
        asked = chain(cause.requester)
        self.metrics.drift_request(cause.cause, asked[-1] if asked else None)

    def _of(self, scope: Scope) -> Told:
        return self._told.setdefault(scope.target.inode, Told())

    def _outage(self, outage: Outage) -> dict[str, Any]:
        return {"devices": self._names(outage.rules), **blame(outage.cause)}

    def _names(self, rules: Iterable[Rule]) -> list[str]:
        return [self.node_of(rule) or rule.device for rule in in_order(rules)]
