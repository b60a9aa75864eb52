"""Observe, judge, mend, observe again, record: one scope at a time, until there is nothing left to do."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Optional

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError, GpuguardError, LedgerError
from gpuguard.guard import act, look, nested, numbers, orders, patience, records, shield
from gpuguard.guard.mend import Target
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Outage, Scope
from gpuguard.model.backoff import Backoff
from gpuguard.model.cause import Cause
from gpuguard.model.entitlement import Entitlement, learn, note_drivers
from gpuguard.model.observation import Observation
from gpuguard.model.plan import Plan, plan
from gpuguard.model.rule import Rule
from gpuguard.model.verdict import judge, judge_unknown

# Ask, write, look twice, declare, ask again, and some for what comes between.
_MAX_ROUNDS = 8
# An entry replaces the access of one that systemd has: what it has should be known well. Seconds.
_OLD_VIEW = 2.0


class Guard:
    """Knows the GPU containers of a node and keeps them whole."""

    def __init__(self, parts: Parts, policy: Policy) -> None:
        self.parts = parts
        self.policy = policy
        self.scopes: dict[str, Scope] = {}
        self._remembered: dict[int, Entitlement] = {}
        self._written_before: dict[tuple[str, int], Optional[tuple[float, Cause]]] = {}

    def take_over(self, other: Guard) -> None:
        """Go on where another guard of the same daemon has ended, with what is not in the ledger."""
        self._written_before = {(group, scope.target.inode): scope.last for group, scope in other.scopes.items()}
        self.parts.recorder.take_over(other.parts.recorder)

    def remember(self) -> None:
        """Take over what the ledger on disk knows. Raises LedgerError."""
        self.parts.ledger.open()
        entries, complaints = self.parts.ledger.load()
        self._remembered = {entry.inode: entry for entry in entries if self._lives(entry)}
        for path, reason in complaints:
            self.parts.recorder.troubles.ledger_damaged(path, reason)

    def _lives(self, entry: Entitlement) -> bool:
        """Whether a scope is still there; one that ended while nobody looked is forgotten."""
        try:
            lives = self.parts.devices.inode(entry.control_group) == entry.inode
        except CgroupGoneError:
            lives = False
        except CgroupUnreadableError:
            lives = True
        if not lives:
            self.parts.ledger.forget(entry.inode)
        return lives

    async def look(self, control_group: str, fresh: bool) -> None:  # noqa: FBT001 - the watch calls it so
        """Look at one scope and do what is to be done; `fresh`: whatever is remembered of systemd.

        Does not raise: one scope's trouble is not the others'.
        """
        try:
            await self._look(control_group, fresh=fresh)
        except CgroupGoneError:
            self.gone(control_group)
        except GpuguardError as error:
            self.parts.recorder.troubles.met(control_group, error)
        except Exception as error:  # noqa: BLE001 - a fault of ours with one scope must not end the guard of the others
            self.parts.recorder.troubles.fault(control_group, error)

    def calm(self, control_group: str, inode: Optional[int]) -> bool:
        """Whether a look would find nothing new: the clock's cheap question. One that is calm is whole.

        `inode` is that of the control group that has this name now, None when there is none or it cannot be told.
        """
        scope = self.scopes.get(control_group)
        if scope is None or inode != scope.target.inode:
            return False
        try:
            seen = self.parts.devices.read(control_group)
        except GpuguardError:
            return False
        stamp, now = self.parts.observer.stamps.stamp(scope.target.unit), time.monotonic()
        if not scope.calm(now, seen, stamp) or records.due(self.parts, scope):
            return False
        scope.whole_at = now
        due = shield.due(self.parts, self.policy, scope) or nested.due(self.parts, self.policy, scope)
        return not (due or orders.due(self.parts, scope))

    def gone(self, control_group: str) -> None:
        """Forget a scope whose control group is not there any more."""
        self.parts.devices.forget(control_group)
        self.parts.sentinel.forget(control_group)
        scope = self.scopes.pop(control_group, None)
        if scope is not None:
            orders.forget_payload(self.parts, scope)
            if scope.entitled is not None:
                self._forget(scope)
            self.parts.candidates.forget(control_group, scope.target.inode)
            self.parts.recorder.gone(scope)

    async def _look(self, control_group: str, *, fresh: bool) -> None:
        scope = await self._scope(control_group)
        if scope is None:
            return
        await records.consult(self.parts, self.policy, scope)
        await shield.remove_unwanted(self.parts, self.policy, scope)
        scope.deeds, scope.error = [], None
        if await self._as_made(scope):
            return
        stamp = self.parts.observer.stamps.stamp(scope.target.unit)
        ask, second_look = fresh or scope.outdated(time.monotonic(), stamp), False
        same_run = not scope.restarts
        asked = False
        await self._catch_up(scope)
        for _ in range(_MAX_ROUNDS):
            seen = look.at(self.parts, scope)
            await records.confirm(self.parts, self.policy, scope)
            entitled = self._learn(scope, seen)
            if entitled is None:
                break
            self._judge(scope, seen, entitled, second_look=second_look)
            shield.raise_if_due(self.parts, self.policy, scope)
            if scope.plan.write and same_run:
                if not await act.write(self.parts, self.policy, scope):
                    break
                # Once is enough: an answer comes after the next reload of several in a row, which takes it all again.
                ask, second_look = not asked, False
            elif ask or scope.plan.write or (scope.plan.declare and _old(scope)):
                await act.ask_systemd(self.parts, scope)
                ask, asked, same_run = False, True, True
            elif scope.plan.look_again:
                await patience.wait(self.parts, scope)
                second_look = True
            elif await act.declare(self.parts, self.policy, scope):
                second_look = False
            else:
                break
        orders.give(self.parts, self.policy, scope)
        await nested.look(self.parts, self.policy, scope, self.keep)
        self.parts.recorder.judged(scope, time.monotonic())

    async def _catch_up(self, scope: Scope) -> None:
        """Hear of the sentinel first where something is missing: it may have been given back, or taken on purpose."""
        if scope.entitled is None:
            return
        try:
            seen = self.parts.devices.read(scope.target.control_group, scope.entitled.rules)
        except CgroupUnreadableError:  # the look itself says so
            return
        if seen.rules.missing(scope.entitled.rules):
            try:  # whose numbers these are is asked before anything is given back
                self.parts.guarded.refresh()
            except CgroupUnreadableError as error:
                self.parts.recorder.troubles.met("/", error)
            await self.parts.sentinel.caught_up()

    async def _scope(self, control_group: str) -> Optional[Scope]:
        """Return the scope that has this name now, a new one when its inode is new."""
        known = self.scopes.get(control_group)
        try:
            inode = self.parts.devices.inode(control_group)
        except CgroupUnreadableError:
            if known is None:
                raise
            return known
        if known is not None and known.target.inode == inode:
            return known
        self.gone(control_group)
        group = self.parts.units.group(control_group)
        if group is None or (group.vouched and not await self.parts.candidates.vouched(group, inode)):
            return None
        policy = self.policy
        scope = Scope(
            Target(group.unit, control_group, inode, group.unit_group),
            group.container,
            Backoff(policy.max_repairs, policy.window, policy.pause),
            self._remembered.pop(inode, None),
            known_since=time.monotonic(),
            last=self._written_before.pop((control_group, inode), None),
        )
        self.scopes[control_group] = scope
        return scope

    async def _as_made(self, scope: Scope) -> bool:
        """Whether a list may still be what the kernel copied from the slice: that is given to nobody.

        systemd makes a group and writes its list in one go, and answers nothing meanwhile: what is seen after it
        has told of this run is meant.
        """
        seen = look.at(self.parts, scope)
        rules = seen.effective
        if scope.entitled is not None or seen.invocation or rules is None or not any(map(self.parts.guarded, rules)):
            return False
        if not self.parts.devices.as_made(scope.target.control_group, rules):
            return False
        await act.ask_systemd(self.parts, scope)
        scope.seen = None  # of what is not known the next round looks at once more
        return not (scope.view and scope.view.invocation)

    def _learn(self, scope: Scope, seen: Observation) -> Optional[Entitlement]:
        """Learn from what was seen, and keep what was learnt; return it, None when there is nothing to guard."""
        before, known = scope.entitled, numbers.of(self.parts, scope)
        scope.entitled = learn(
            before,
            seen,
            lambda rule: self.parts.guarded(rule) and scope.learnable(rule, starting=seen.starting),
            settle=self.policy.settle,
            reloading=self.parts.causes.reloading(seen.at),
            wall_clock=time.time(),
            record=records.settled(scope),
            stale=known.idle.union(known.stale),
        )
        if scope.entitled is None:
            doubts = () if scope.early else scope.record.doubts  # what may still be given is not in doubt
            scope.verdict, scope.plan = judge_unknown(seen, self.parts.guarded, doubts), Plan()
            if scope.premature and scope.verdict is not None and scope.verdict.excess:
                scope.verdict = None
            if before is not None:
                self._forget(scope)
        elif scope.entitled != before:
            self.keep(scope, scope.entitled)
        return scope.entitled

    def keep(self, scope: Scope, entitled: Entitlement) -> None:
        """Hold on to an entitlement; a ledger that cannot be written does not hinder the guard."""
        changed = scope.entitled is None or scope.entitled.rules != entitled.rules
        scope.entitled = entitled
        stale = numbers.of(self.parts, scope).stale
        scope.entitled = entitled = note_drivers(entitled, self.parts.guarded.majors, stale)
        if changed:
            orders.give(self.parts, self.policy, scope)
        try:
            self.parts.ledger.save(entitled)
        except LedgerError as error:
            self.parts.recorder.troubles.met(scope.target.control_group, error)

    def _forget(self, scope: Scope) -> None:
        try:
            self.parts.ledger.forget(scope.target.inode)
        except LedgerError as error:
            self.parts.recorder.troubles.met(scope.target.control_group, error)

    def _judge(self, scope: Scope, seen: Observation, entitled: Entitlement, *, second_look: bool) -> None:
        found = numbers.of(self.parts, scope)
        verdict = scope.verdict = judge(seen, entitled, self.parts.guarded, found.stale, found.idle)
        scope.plan = plan(
            seen,
            entitled,
            verdict,
            guarded=self.parts.guarded,
            merge=functools.partial(self.parts.guarded.merge, self.parts.observer.version),
            protect=self.policy.protect,
            futile=scope.futile,
            second_look=second_look,
            self_given=scope.may_be_self_given,
        )
        known = seen.effective is not None and seen.declared is not None
        if known and not (verdict.at_risk or verdict.lost):
            scope.futile = None
        # The own list of a container in another group says nothing of it.
        if seen.effective is not None and seen.elsewhere is None and not verdict.lost:
            self._whole(scope, seen.at)
        elif scope.plan.lost:
            nested.strike(self.keep, scope, frozenset(scope.plan.lost))
            if scope.outage is None:
                self._struck(scope, scope.entitled or entitled, verdict.lost, seen.at)

    def _whole(self, scope: Scope, now: float) -> None:
        scope.whole_at = now
        if scope.outage is not None:
            self.parts.recorder.healed(scope, scope.outage, now)
            scope.outage = None

    def _struck(self, scope: Scope, entitled: Entitlement, lost: frozenset[Rule], now: float) -> None:
        """Note a loss: it cannot have begun before the scope was last seen whole."""
        cause = self.parts.causes.of_loss(scope.target.unit, scope.target.control_group, now, scope.whole_at)
        since = scope.whole_at if cause.since is None else max(cause.since, scope.whole_at or 0.0)
        scope.outage = Outage(since, lost, cause)
        if not entitled.struck:
            self.keep(scope, replace(entitled, struck=True))


def _old(scope: Scope) -> bool:
    """Whether systemd's answer is too old to declare anything upon."""
    return time.monotonic() - scope.viewed_at > _OLD_VIEW
