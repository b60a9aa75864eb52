"""Turn verdicts and deeds into metrics and journal entries: each thing once, and lost before repaired."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, Optional

from structlog.typing import FilteringBoundLogger

from gpuguard.guard.blame import blame, state_without
from gpuguard.guard.mend import Deed
from gpuguard.guard.record_sources import SourceRecorder
from gpuguard.guard.scope import Outage, Scope
from gpuguard.model.cause import Cause
from gpuguard.model.requester import chain
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.write import Write
from gpuguard.report.clean import clean
from gpuguard.report.kinds import KINDS, emit
from gpuguard.report.metrics import Metrics

_MICROSECONDS = 1_000_000
# A trouble that was not met for so long, in seconds, is news when it comes back.
_TROUBLE_OVER = 300.0
_MAX_TROUBLES = 1024
# Containers in that time of whose files it is told that they are not believed: on some nodes none are.
_MOST_UNBELIEVED = 3
_MAX_TEXT = 1024
# Of control groups that are named in one entry.
_MOST_GROUPS = 15


@dataclass
class _Told:
    """What was said of a scope, so that it is not said again."""

    found: bool = False
    state: Optional[State] = None
    reason: Optional[str] = None
    excess: frozenset[Rule] = frozenset()
    error: Optional[str] = None
    plan: object = None
    outage: Optional[Outage] = None
    declared: tuple[Rule, ...] = ()
    fighting: bool = False
    shielded: bool = False


@dataclass
class Recorder:
    """Tells Prometheus and the journal. `node_of` names a rule's device node, such as /dev/nvidia0.

    `_troubles` has the text and the time of the last trouble of each control group, the one longest ago first.
    """

    metrics: Metrics
    log: FilteringBoundLogger
    node_of: Callable[[Rule], Optional[str]]
    _told: dict[int, _Told] = field(default_factory=dict)
    _troubles: dict[str, tuple[str, float]] = field(default_factory=dict)
    _unbelieved: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Have the sources told of in the same places."""
        self.sources = SourceRecorder(self.metrics, self.log)

    def take_over(self, other: Recorder) -> None:
        """Go on from what another one has told: that is not told again."""
        self._told, self._troubles = dict(other._told), dict(other._troubles)
        self._unbelieved = dict(other._unbelieved)
        self.sources.take_over(other.sources)

    def keep_only(self, inodes: Iterable[int]) -> None:
        """Forget what was told of scopes that are not there any more, by their control groups' inodes."""
        kept = frozenset(inodes)
        self._told = {inode: told for inode, told in self._told.items() if inode in kept}

    def gone(self, scope: Scope) -> None:
        """Tell that a container has ended, if it was guarded."""
        self._told.pop(scope.target.inode, None)
        self._troubles.pop(scope.target.control_group, None)
        if scope.entitled is not None:
            emit(self.log, KINDS.gone, **self._fields(scope))

    def done(self, scope: Scope, deed: Deed) -> None:
        """Tell what was done to a scope, unless it went as it should."""
        self._tell_loss(scope)
        self.metrics.repair(deed.method, deed.result, deed.seconds)
        told = self._of(scope)
        if deed.error is None:
            told.error = None
            if deed.method == "declare" and scope.verdict is not None:
                told.declared = _sorted(scope.verdict.at_risk)
        elif deed.error != told.error:
            told.error = deed.error
            kind = KINDS.repair_failed if deed.method == "write" or _owed(scope) else KINDS.declare_failed
            emit(self.log, kind, **self._fields(scope), devices=self._names(_meant(scope)), reason=deed.error)

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
            **self._fields(scope),
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
        fields = {**self._fields(scope), **blame(cause)}
        nodes = [self.node_of(Rule.parse(f"{device} rwm")) or device for device in sorted(taken)]
        if nodes:
            emit(self.log, KINDS.revoked, **fields, devices=nodes)
        else:
            emit(self.log, KINDS.granted, **fields, devices=self._names(given))

    def observed(self, scope: Scope) -> None:
        """Tell what observe mode did not do."""
        self._tell_loss(scope)
        told = self._of(scope)
        if scope.plan == told.plan:
            return
        told.plan = scope.plan
        emit(
            self.log,
            KINDS.observed,
            **self._fields(scope),
            deed="given back" if _owed(scope) else "declared to systemd",
            devices=self._names(_meant(scope)),
        )

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
        emit(self.log, KINDS.fight, **self._fields(scope), **cause, devices=self._names(_meant(scope)), pause=pause)

    def judged(self, scope: Scope, now: float) -> None:
        """Tell what is new about a scope when a look is over."""
        verdict, entitled = scope.verdict, scope.entitled
        if verdict is None:
            return
        told = self._of(scope)
        if entitled is not None and entitled.settled and not told.found:
            told.found = True
            emit(self.log, KINDS.found, **self._fields(scope), devices=self._names(entitled.rules))
        self._tell_loss(scope)
        if told.outage is not None and scope.outage is None:  # it ended between two guards
            self.healed(scope, replace(told.outage, since=None), now)
        if not scope.plan:
            told.plan = None
        if told.fighting and scope.backoff.may_repair(now):
            told.fighting = False
            emit(self.log, KINDS.fight_over, **self._fields(scope))
        if verdict.excess - told.excess:
            self.metrics.drift("excess", "unknown", None)
            emit(self.log, KINDS.excess, **self._fields(scope), devices=self._names(verdict.excess))
        told.excess = verdict.excess
        self._tell_declared(scope, told)
        if scope.shielded and not told.shielded:
            told.shielded = True
            emit(self.log, KINDS.shielded, **self._fields(scope))
        if (verdict.state, scope.reason) != (told.state, told.reason):
            self._tell_state(scope, told)
        told.state, told.reason = verdict.state, scope.reason

    def safe(self, scope: Scope) -> None:
        """Tell that systemd knows the devices now, which it did not; not before it is told that they were lost."""
        if scope.state is State.PROTECTED:
            self._tell_declared(scope, self._of(scope))

    def _tell_declared(self, scope: Scope, told: _Told) -> None:
        if scope.untold and scope.state is State.PROTECTED:
            return
        declared, told.declared = told.declared, ()
        if declared and scope.state is State.PROTECTED:
            emit(self.log, KINDS.declared, **self._fields(scope), devices=self._names(declared))

    def _tell_state(self, scope: Scope, told: _Told) -> None:
        verdict = scope.verdict
        if verdict is None:
            return
        if verdict.state is State.STALE:
            self.metrics.drift("stale", "unknown", None)
            emit(self.log, KINDS.stale, **self._fields(scope), devices=self._names(verdict.stale), reason=scope.reason)
        elif verdict.state is State.OPAQUE and scope.entitled is None and scope.effective is not None:
            emit(self.log, KINDS.unclear, **self._fields(scope), reason=scope.reason)
        elif verdict.state is State.OPAQUE:
            emit(self.log, KINDS.blind, **self._fields(scope), reason=scope.reason)
        elif verdict.state in {State.LOST, State.PARTIAL}:
            self._tell_hopeless(scope, told)
        elif verdict.state is State.AT_RISK and verdict.at_risk:
            if told.state is not State.AT_RISK:
                self.metrics.drift("at_risk", "unknown", None)
            kind = KINDS.declare_failed if scope.futile is not None or scope.plan.undeclarable else KINDS.at_risk
            kind = KINDS.shield_keeps if scope.kept else kind
            emit(self.log, kind, **self._fields(scope), devices=self._names(verdict.at_risk), reason=scope.reason)

    def _tell_hopeless(self, scope: Scope, told: _Told) -> None:
        """Tell that nothing can be done about a loss, as on cgroup v2; what was tried in vain is told by done()."""
        if scope.plan.lost and not scope.plan and told.error is None:
            names = self._names(scope.plan.lost)
            emit(self.log, KINDS.repair_failed, **self._fields(scope), devices=names, reason=scope.reason)

    def shield_removed(self, scope: Scope) -> None:
        """Tell that a shield is gone: one that was there for good, or that nobody held up any more."""
        told = self._of(scope)
        emit(self.log, KINDS.unshielded if told.shielded else KINDS.shield_removed, **self._fields(scope))
        told.shielded = False

    def released(self, scope: Scope, rules: Iterable[Rule]) -> None:
        """Tell that somebody had devices forgotten on purpose."""
        if scope.outage is None:
            self._of(scope).outage = None
        emit(self.log, KINDS.released, **self._fields(scope), devices=self._names(rules))

    def restored_below(self, scope: Scope, rules: Iterable[Rule], groups: Sequence[str]) -> None:
        """Tell which control groups that the container has made got back what it had lost."""
        fields = {**self._fields(scope), "devices": list(dict.fromkeys(self._names(rules)))}
        names = [clean(name) for name in groups[:_MOST_GROUPS]]
        more = [f"{len(groups) - _MOST_GROUPS} more"] if len(groups) > _MOST_GROUPS else []
        emit(self.log, KINDS.restored_below, **fields, groups=names + more)

    def ledger_damaged(self, path: str, reason: str) -> None:
        """Tell that a file of the ledger cannot be used."""
        emit(self.log, KINDS.ledger_damaged, path=path, reason=reason)

    def trouble(self, control_group: str, error: Exception) -> None:
        """Tell what could not be done or read; not again while it lasts unchanged."""
        now, text = time.monotonic(), str(error)[:_MAX_TEXT]
        known, met = self._troubles.pop(control_group, ("", 0.0))
        while len(self._troubles) >= _MAX_TROUBLES:
            del self._troubles[next(iter(self._troubles))]
        self._troubles[control_group] = (text, now)
        if text != known or now - met > _TROUBLE_OVER:
            emit(self.log, KINDS.trouble, scope=_unit(control_group), reason=text)

    def unbelieved(self, control_group: str, error: Exception) -> None:
        """Tell of a runtime's files that say nothing, for a few containers; `explain` tells of each."""
        now = time.monotonic()
        self._unbelieved = {group: at for group, at in self._unbelieved.items() if now - at < _TROUBLE_OVER}
        if control_group in self._unbelieved or len(self._unbelieved) < _MOST_UNBELIEVED:
            self._unbelieved[control_group] = now
            self.trouble(control_group, error)

    def fault(self, control_group: str, error: Exception) -> None:
        """Tell of a fault in gpuguard itself; the scope is looked at again at the next round."""
        emit(self.log, KINDS.fault, scope=_unit(control_group), exc_info=error)

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
        emit(self.log, KINDS.lost, **{**self._fields(scope), **other}, **self._outage(outage))

    def _count_loss(self, cause: Cause) -> None:
        self.metrics.drift("lost", cause.cause, cause.program)
        asked = chain(cause.requester)
        self.metrics.drift_request(cause.cause, asked[-1] if asked else None)

    def _of(self, scope: Scope) -> _Told:
        return self._told.setdefault(scope.target.inode, _Told())

    def _fields(self, scope: Scope) -> dict[str, Any]:
        return {
            "scope": scope.target.unit,
            "container": scope.container.id,
            "runtime": scope.record.runtime or scope.container.runtime,
            "name": scope.record.identity.name,
            "namespace": scope.record.identity.namespace,
            "pod": scope.record.identity.pod,
            "state": None if scope.state is None else scope.state.value,
        }

    def _outage(self, outage: Outage) -> dict[str, Any]:
        return {"devices": self._names(outage.rules), **blame(outage.cause)}

    def _names(self, rules: Iterable[Rule]) -> list[str]:
        return [self.node_of(rule) or rule.device for rule in _sorted(rules)]


def _owed(scope: Scope) -> frozenset[Rule]:
    """Return what the plan gives back, on cgroup v2 by a declaration; nothing where it only protects."""
    return frozenset(scope.plan.lost) - (scope.verdict.blocked if scope.verdict is not None else frozenset())


def _meant(scope: Scope) -> Iterable[Rule]:
    """Return what the plan is for."""
    return _owed(scope) or (scope.verdict.at_risk if scope.verdict is not None else ())


def _unit(control_group: str) -> str:
    return PurePosixPath(control_group).name or control_group


def _sorted(rules: Iterable[Rule]) -> tuple[Rule, ...]:
    return tuple(sorted(rules, key=lambda rule: rule.sort_key))
