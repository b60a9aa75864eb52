"""What the guard remembers of one scope between two looks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Optional

from gpuguard.guard.mend import Target
from gpuguard.guard.observe import SystemdView
from gpuguard.model.backoff import Backoff
from gpuguard.model.cause import Cause
from gpuguard.model.device_list import DeviceList, Payload
from gpuguard.model.deviceallow import standard_rules
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.plan import Futile, Plan
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.runtime_record import RuntimeRecord
from gpuguard.model.scope_name import ContainerScope
from gpuguard.model.stale import Numbers
from gpuguard.model.state import State
from gpuguard.model.unit import DevicePolicy
from gpuguard.model.verdict import Verdict
from gpuguard.systemd.unit_stamp import Stamp

# What changes without a signal and without a trace in the directories' times is seen this late, in seconds.
_VIEW_MAX_AGE = 300.0
# No runtime starts a container for longer. Seconds.
_LONGEST_START = 600.0
_STANDARD = RuleSet(standard_rules(DevicePolicy.CLOSED, ()))
# A tuple: finding one by identity costs less than its hash.
_AT_REST = (State.PROTECTED, State.AT_RISK, State.UNRESTRICTED)


@dataclass(frozen=True)
class Outage:
    """A loss that is not yet mended.

    `since` is the earliest moment at which it can have begun, None when the scope was never seen whole.
    """

    since: Optional[float]
    rules: frozenset[Rule]
    cause: Cause


@dataclass
class Scope:
    """One scope, known by its cgroup's inode. Times are seconds of CLOCK_MONOTONIC.

    `known_since` is when the guard first saw it. `futile` is the declaration that was last made in vain. `whole_at` is
    when the scope was last seen with all its rules; `made_good` is when the last rewrite by systemd began after which
    rules were given back, `reloaded` when the last reload ended after which they were declared; `deeds` and `error` are
    what the last look did and what failed of it. `last` is when its list was last written, in seconds since the epoch,
    and why. `paused`: the sentinel was told that the back-off forbids repairs. `untold`: so many writes to it wait to
    be told. `outstanding`: systemd has not answered a declaration. `shielded`: the shield stands for good; `shields`
    counts how often one was raised or removed.
    `self_given` are rules that the container itself wrote while it settled: they are not learnt. `record` is what the
    runtime's own files say of the container, read when the host's devices were at `generation`, at `consulted`;
    `early`: when NVIDIA's hook may still have been at work; `premature`: while the container started and its
    runtime had not written it yet; `vacant`: the same while there was no process in it.
    `numbers` is what was reckoned of its rules' numbers last, and from what.
    `payload` is the container's own group below, as the sentinel was told; `counted_below` is when the clock last read
    all lists there.
    """

    target: Target
    container: ContainerScope
    backoff: Backoff
    entitled: Optional[Entitlement] = None
    known_since: float = 0.0
    seen: Optional[DeviceList] = None
    view: Optional[SystemdView] = None
    viewed_at: float = 0.0
    verdict: Optional[Verdict] = None
    plan: Plan = field(default_factory=Plan)
    futile: Optional[Futile] = None
    outage: Optional[Outage] = None
    made_good: Optional[float] = None
    reloaded: Optional[float] = None
    deeds: list[str] = field(default_factory=list)
    error: Optional[str] = None
    whole_at: Optional[float] = None
    last: Optional[tuple[float, Cause]] = None
    paused: bool = False
    untold: int = 0
    outstanding: bool = False
    shielded: bool = False
    shields: Optional[Backoff] = None
    self_given: RuleSet = field(default_factory=RuleSet)
    record: RuntimeRecord = field(default_factory=RuntimeRecord)
    numbers: Optional[tuple[object, Numbers]] = None
    payload: Optional[Payload] = None
    counted_below: float = -math.inf
    generation: int = -1
    consulted: float = -math.inf
    early: bool = False
    premature: bool = False
    vacant: bool = False

    @property
    def effective(self) -> Optional[RuleSet]:
        """What the kernel allowed at the last look, None when that could not be told."""
        return self.seen.rules if self.seen is not None else None

    @property
    def state(self) -> Optional[State]:
        """The state at the last look, None for a scope without guarded devices."""
        return self.verdict.state if self.verdict is not None else None

    @property
    def reason(self) -> Optional[str]:
        """Why the state is not better, where that is known."""
        if self.verdict is None:
            return None
        # On cgroup v2 what keeps systemd from being told keeps the loss from being mended, too. Of stale numbers the
        # container is rid only with a restart, whatever systemd can be told.
        told = bool(self.verdict.blocked) or self.state is State.STALE
        reason = (None if told else self.plan.hindrance) or self.verdict.reason
        return f"{reason}; the shield keeps it" if self.kept else reason

    @property
    def kept(self) -> bool:
        """Whether the shield keeps what systemd does not know."""
        return self.shielded and self.state is State.AT_RISK

    @property
    def restarts(self) -> bool:
        """Whether another run can have the same inode: a service keeps a control group that a process is left in."""
        return self.target.is_unit and not self.target.unit.endswith(".scope")

    def learnable(self, rule: Rule, *, starting: Optional[bool]) -> bool:
        """Whether a rule that is seen may have come from the runtime or its hooks.

        A container that may write its own list is not believed once its program has begun, but for what its runtime's
        files say for certain: what it may have been given besides, it may have written.
        """
        if self.self_given.covers(rule):
            return False
        if starting:
            return True
        if self.premature:  # its files are read before the next look, and tell whether it is to be believed
            return False
        if self.record.trusted is not False:
            return True
        everything = self.record.possible is not None and self.record.possible.unrestricted
        return everything or RuleSet(self.record.rules).covers(rule)

    def may_be_self_given(self, rule: Rule) -> bool:
        """Whether a rule in force may be of the container's own making: it may write its list, and was not given that.

        What runtimes give to all is in no specification: the standard devices, and the right to make nodes.
        """
        possible = self.record.possible
        if self.record.trusted is not False or not rule.opens or (possible is not None and possible.covers(rule)):
            return False
        return not _STANDARD.covers(rule)

    @property
    def owed(self) -> frozenset[Rule]:
        """What is to be given back when it is missing: not what the last look found stale, or without its driver."""
        if self.entitled is None:
            return frozenset()
        return self.entitled.rules - (self.verdict.stale | self.verdict.idle if self.verdict else frozenset())

    @property
    def start_matters(self) -> bool:
        """Whether it makes a difference if the container is still being started."""
        if self.settling or self.premature:
            return True
        return self.entitled is None and (bool(self.record.grants) or self.record.trusted is False)

    @property
    def settling(self) -> bool:
        """Whether the entitlement is still provisional."""
        return self.entitled is not None and not self.entitled.settled

    def settling_for(self, now: float) -> float:
        """Return the seconds since a settling scope's rules last changed, infinity for any other."""
        return now - self.entitled.quiet_since if self.entitled is not None and self.settling else math.inf

    def calm(self, now: float, seen: DeviceList, stamp: Stamp) -> bool:
        """Whether a list and a stamp of the unit's files that did not change need no closer look."""
        if self.seen is None or seen.rules is not self.seen.rules or seen.filters is not self.seen.filters:
            return False
        if (seen.payload, seen.nested) != (self.seen.payload, self.seen.nested):
            return False
        if self.entitled is None:
            # What is granted counts when the start is over, which changes no list.
            return not self.record.grants or now - self.known_since >= _LONGEST_START
        wants_look = self.state not in _AT_REST or bool(self.plan)
        return not wants_look and self.view is not None and not self._aged(self.view, now, stamp)

    def outdated(self, now: float, stamp: Stamp) -> bool:
        """Whether systemd should be asked again before anything is concluded from its last answer."""
        if self.view is None or (self.view.declared is None and self.view.managed):
            return True
        return self._aged(self.view, now, stamp)

    def _aged(self, view: SystemdView, now: float, stamp: Stamp) -> bool:
        return view.managed and (view.stamp != stamp or now - self.viewed_at >= _VIEW_MAX_AGE)
