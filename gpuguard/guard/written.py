"""Takes what the sentinel tells: who wrote a device list, what it has given back already, that programs change."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Optional

from gpuguard.guard import nested, payload, records
from gpuguard.guard.clock import Clock
from gpuguard.guard.guard import Guard
from gpuguard.guard.scope import Scope
from gpuguard.guard.sentinel import SENTINEL, Told
from gpuguard.guard.watch import Watch
from gpuguard.model.entitlement import Entitlement, grant, learn, release, unlearn
from gpuguard.model.observation import Observation
from gpuguard.model.process import Process, Role
from gpuguard.model.revocation import granted, revoked, self_given
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import ProgramsChanged, Standing, Write

# systemd tells of a reload behind thousands of other signals: what a write is put down to is decided a little later,
# and not before a reload that is under way has told what it is. Not where the one that asked for it was seen.
_GRACE = 0.3
_LONGEST_GRACE = 10.0
# A hint comes before the call itself; a reload makes many of them, one after the other.
_AFTER_HINT = (0.001, 0.02, 0.1)
_MAX_LATER = 4096
_OF_THE_HOST = frozenset({Role.HOST, Role.RUNTIME})


class Writes:
    """Turns what the sentinel tells into looks, and into what the guard knows of a scope. Nothing here raises.

    `ended` returns who had a number at a moment, and its ancestors, where that is still known.
    """

    def __init__(
        self,
        guard: Guard,
        watch: Watch,
        clock: Clock,
        look_at_all: Callable[[], None],
        ended: Callable[[int, float], tuple[Process, ...]] = lambda _pid, _at: (),
    ) -> None:
        self._guard = guard
        self._watch = watch
        self._clock = clock
        self._look_at_all = look_at_all
        self._ended = ended
        self._later: set[asyncio.TimerHandle] = set()
        self._owed: dict[asyncio.TimerHandle, Callable[[], None]] = {}
        self._closing = False
        self._looks = 0
        self._again = False

    def take(self, told: Told) -> None:
        """Take one message."""
        try:
            self._take(told)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not end the daemon, at each write anew
            self._guard.parts.recorder.troubles.fault(told.control_group if isinstance(told, Write) else "/", error)

    def _take(self, told: Told) -> None:
        recorder = self._guard.parts.recorder
        if isinstance(told, Standing):
            recorder.sources.stands(told)
            return
        recorder.metrics.source_event(SENTINEL)
        if isinstance(told, Write):
            self._write(told)
        elif isinstance(told, ProgramsChanged):
            self._hint(told)
        else:
            recorder.sources.lost(SENTINEL)
            self._look_at_all()
            self._clock.soon()

    def close(self) -> None:
        """Tell what is still to be told, and drop the looks to come."""
        self._closing = True
        for handle in self._later:
            handle.cancel()
        self._later.clear()
        for tell in self._owed.values():
            tell()
        self._owed.clear()

    def _write(self, told: Write) -> None:
        guard, write = self._guard, self._completed(told)
        guard.parts.recorder.metrics.device_write(write.writer.program if write.writer is not None else None)
        scope = payload.scope_of(guard.scopes, write)
        if scope is None:
            return
        told = payload.of_the_container(guard.parts, scope, told)
        write = replace(told, writer=write.writer, requester=write.requester)
        guard.parts.causes.wrote(write)
        changed = self._learn(scope, write)
        # A number may have been another's since: who is known by it alone is named, and has meant nothing.
        changed = self._on_purpose(scope, told) or changed
        nested.strike(guard.keep, scope, _lost(scope, write))
        if write.restored:
            self._gave_back(scope, write)
        if changed or write.restored or write.refused or write.error or _short_of(scope, write):
            self._watch.want(write.control_group, fresh=False)
        if len(self._later) >= _MAX_LATER or guard.parts.causes.certain(_unit(scope), write):
            self._tell(scope, write)
        else:
            scope.untold += 1
            self._tell_later(scope, write, time.monotonic())

    def _completed(self, write: Write) -> Write:
        """Say who wrote where the sentinel has come too late to see all of it."""
        if not write.pid or (write.writer is not None and write.writer.exe):
            return write
        line = self._ended(write.pid, write.at)
        return replace(write, writer=line[0], requester=line) if line else write

    def _learn(self, scope: Scope, write: Write) -> bool:
        """Learn provisionally what a write left in a list, which may be gone by now; return whether that is news."""
        if scope.restarts:  # what was before may be another run's
            return False
        learnable = self._learnable(scope, write)
        known = self._learnt(scope, scope.entitled, write.before, write.at, learnable)
        own = self._self_given(scope, write)
        if own:
            had = frozenset(filter(learnable, write.before or ()))
            scope.self_given = RuleSet(scope.self_given.rules | own)
            if known is not None:
                known = unlearn(known, RuleSet(own), had)
        known = self._learnt(scope, known, write.after, write.at, learnable)
        if known is None or known == scope.entitled:
            return False
        self._guard.keep(scope, known)
        return True

    def _learnt(
        self,
        scope: Scope,
        known: Optional[Entitlement],
        rules: Optional[RuleSet],
        at: float,
        learnable: Callable[[Rule], bool],
    ) -> Optional[Entitlement]:
        target = scope.target
        look = Observation(target.unit, target.control_group, target.inode, at, rules, None)
        return learn(known, look, learnable, settle=math.inf, reloading=True, wall_clock=time.time())

    def _learnable(self, scope: Scope, write: Write) -> Callable[[Rule], bool]:
        """Return what may be learnt at a write: what an identified program of the host has added, in any case."""
        parts = self._guard.parts
        starting = records.starting(parts, scope) if scope.start_matters else None
        if records.unread(scope) and write.writer is not None and write.writer.role is Role.CONTAINER:
            return lambda _: False  # that it still starts can be a deception: a look reads its files first
        added = frozenset[Rule]()
        if write.writer is not None and write.writer.role in _OF_THE_HOST and write.before is not None:
            added = write.before.missing(write.after.rules if write.after is not None else ())
        return lambda rule: parts.guarded(rule) and (rule in added or scope.learnable(rule, starting=starting))

    def _self_given(self, scope: Scope, write: Write) -> frozenset[Rule]:
        """Return what the container has given itself; until its own program has begun it is the runtime's hooks."""
        parts = self._guard.parts
        if scope.entitled is not None and scope.entitled.settled:
            return frozenset()
        own = self_given(write, parts.guarded)
        return own if own and not records.starting(parts, scope) else frozenset()

    def _on_purpose(self, scope: Scope, write: Write) -> bool:
        """Respect what was taken on purpose, learn what was given; return whether there was anything of that."""
        guard, entitled = self._guard, scope.entitled
        if entitled is None:
            return False
        taken = revoked(write, entitled)
        given = frozenset() if taken else granted(write, entitled, guard.parts.guarded)
        if taken:
            guard.keep(scope, release(entitled, taken))
        elif given:
            guard.keep(scope, grant(entitled, given))
        if taken or given:
            self._guard.parts.recorder.on_purpose(scope, taken, given, guard.parts.causes.of_write(_unit(scope), write))
        return bool(taken or given)

    def _gave_back(self, scope: Scope, write: Write) -> None:
        self._guard.parts.recorder.restored(write)
        if write.whole_at is not None:
            scope.whole_at = max(write.whole_at, scope.whole_at or 0.0)
        if write.writer is None or write.writer.role is not Role.SYSTEMD:
            scope.backoff.repaired(write.at)
        if scope.entitled is not None and not scope.entitled.struck:
            self._guard.keep(scope, replace(scope.entitled, struck=True))

    def _tell_later(self, scope: Scope, write: Write, began: float) -> None:
        def due() -> None:
            now = time.monotonic()
            if self._guard.parts.causes.reloading(now) and now - began < _LONGEST_GRACE and not self._closing:
                self._tell_later(scope, write, began)
                return
            scope.untold -= 1
            self._tell(scope, write)

        self._owed[self._in(_GRACE, due)] = due

    def _tell(self, scope: Scope, write: Write) -> None:
        """Tell of a write when it is known what it is put down to."""
        recorder = self._guard.parts.recorder
        cause = self._guard.parts.causes.of_write(_unit(scope), write)
        by_systemd = cause.writer is not None and cause.writer.role is Role.SYSTEMD
        if write.denied or not by_systemd or scope.last is None:
            scope.last = (_wall(write.at, time.monotonic()), cause)
        if write.restored and write.whole_at is not None:
            recorder.healed_at_the_write(scope, write, cause)
        if not scope.untold:
            recorder.safe(scope)

    def _hint(self, hint: ProgramsChanged) -> None:
        parts = self._guard.parts
        parts.causes.programs_change(hint)
        self._again = True
        if not self._looks:
            self._look_soon()

    def _look_soon(self) -> None:
        """Look a few times from now on; what is hinted at meanwhile makes it begin once more."""
        self._again, self._looks = False, len(_AFTER_HINT)
        for delay in _AFTER_HINT:
            self._in(delay, self._look_due)

    def _look_due(self) -> None:
        self._clock.soon()
        self._looks -= 1
        if not self._looks and self._again:
            self._look_soon()

    def _in(self, delay: float, do: Callable[[], None]) -> asyncio.TimerHandle:
        def due() -> None:
            self._later.discard(handle)
            self._owed.pop(handle, None)
            do()

        handle = asyncio.get_running_loop().call_later(delay, due)
        self._later.add(handle)
        return handle


def _unit(scope: Scope) -> str:
    return scope.target.unit


def _lost(scope: Scope, write: Write) -> frozenset[Rule]:
    """Return what a write took, be it that somebody has given it back since; not what was meant."""
    if scope.entitled is None or write.before is None or write.after is None:
        return write.restored
    before, after = write.before, write.after
    return write.restored.union(after.missing(filter(before.covers, scope.entitled.rules)))


def _short_of(scope: Scope, write: Write) -> bool:
    """Whether the list was without something that the scope is entitled to; a torn look may be, too."""
    return scope.entitled is not None and (write.after is None or bool(write.after.missing(scope.entitled.rules)))


def _wall(at: float, now: float) -> float:
    """Return a moment in seconds since the epoch."""
    return time.time() - (now - at)
