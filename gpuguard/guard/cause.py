"""What has just happened in systemd and to device lists, so that a change can be put down to it. Holds no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Optional, TypeVar

from gpuguard.model.cause import SYSTEMD, Cause
from gpuguard.model.process import INIT, Process, Role
from gpuguard.model.requester import Request, request_of
from gpuguard.model.write import ProgramsChanged, Write
from gpuguard.report.metrics import ReloadKind
from gpuguard.systemd.events import Called

# A change that is seen this many seconds after an event is put down to it, not one that is seen later.
_FRESH = 2.0
# systemd carries a call out within so many seconds, unless it is very busy: what comes later is not put down to it.
# runc calls when it creates a container, and again at an update.
_PROMPT = 0.5
# A reload that has begun and whose end was missed is over some time.
_LONGEST_RELOAD = 300.0
_MAX_UNITS = 1024
# Those who were seen waiting for systemd: not at each of the changes that it made for them.
_MAX_WAITING = 16
_RELOADING = frozenset({"Reload", "Reexecute"})
_SETTING = "SetUnitProperties"
_WORDS = {Role.RUNTIME: "runtime", Role.HOST: "manual", Role.CONTAINER: "manual"}

_Value = TypeVar("_Value")
Lineage = tuple[Process, ...]


@dataclass(frozen=True)
class _Call:
    """A call to systemd over the bus: when, by whom, and what it sets."""

    at: float
    caller: Lineage = ()
    properties: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Reload:
    """A reload: since when, and until when if it is over."""

    kind: ReloadKind
    began: float
    ended: Optional[float] = None


class Causes:
    """Remembers reloads, calls and writes. All times are seconds of CLOCK_MONOTONIC.

    `recent` returns the lineages of those who have asked systemd for something since a moment and may have ended, the
    latest first.
    """

    def __init__(self, recent: Callable[[float], list[Lineage]] = lambda _: [], systemd: Process = SYSTEMD) -> None:
        self._began: Optional[float] = None
        self._replaced = False
        self._last: Optional[_Reload] = None
        self._reload_call: Optional[_Call] = None
        self._calls: dict[str, _Call] = {}
        self._writes: dict[str, Write] = {}
        self._hint: Optional[ProgramsChanged] = None
        self._waiting: deque[tuple[float, Lineage]] = deque(maxlen=_MAX_WAITING)
        self._declared: dict[str, float] = {}
        self.recent = recent
        self._systemd = systemd

    def reload_began(self, now: float, asker: Lineage = ()) -> None:
        """Note Reloading(true), and who was seen waiting for it."""
        self._began = now
        self._replaced = False
        if asker:
            self._waiting.append((now, asker))

    def manager_replaced(self) -> None:
        """Note that a new process has taken systemd's name on the bus, as a daemon-reexec makes it."""
        self._replaced = True

    def reload_ended(self, now: float) -> ReloadKind:
        """Note Reloading(false); return which kind it was: reload or reexec."""
        kind = self._kind
        self._last = _Reload(kind, now if self._began is None else self._began, now)
        self._began = None
        self._replaced = False
        return kind

    @property
    def last_reload(self) -> Optional[float]:
        """When the last reload or reexec ended, None before the first one."""
        return self._last.ended if self._last is not None else None

    def lost_sight(self) -> None:
        """Note that the end of a reload under way will not be told."""
        self._began = None
        self._replaced = False

    def reloading(self, now: float) -> bool:
        """Whether a reload is under way, as far as the signals tell."""
        return self._began is not None and now - self._began < _LONGEST_RELOAD

    def called(self, call: Called, caller: Lineage, now: float) -> None:
        """Note that somebody asked systemd over the bus for something that rewrites device rules."""
        if call.member in _RELOADING:
            self._reload_call = _Call(now, caller)
        elif call.unit is not None and call.member == _SETTING:
            _keep(self._calls, call.unit, _Call(now, caller, tuple(dict.fromkeys(call.properties))))

    def declared(self, unit: str, now: float) -> None:
        """Note that gpuguard itself has had systemd set a unit's devices."""
        _keep(self._declared, unit, now)

    def wrote(self, write: Write) -> None:
        """Note a write to a list (cgroup v1)."""
        if write.denied:
            _keep(self._writes, write.control_group, write)

    def denied_by_another(self, control_group: str, since: float) -> bool:
        """Whether it was somebody else than systemd who was last heard to take rules, as far back as `since`."""
        write = self._writes.get(control_group)
        return write is not None and write.at >= since and write.pid != INIT

    def programs_change(self, hint: ProgramsChanged) -> None:
        """Note that somebody attaches or detaches programs (cgroup v2)."""
        # A container may call as often as it likes, to be refused: it does not hide who is at work.
        if not (_by_container(hint) and self._hint is not None and hint.at - self._hint.at < _FRESH):
            self._hint = hint
        if hint.requester:
            self._waiting.append((hint.at, hint.requester))

    def of_write(self, unit: str, write: Write) -> Cause:
        """Put a write down to what asked for it."""
        if write.writer is None:
            return Cause(since=write.at)
        if write.writer.role is Role.SYSTEMD:
            seen = (write.requester, write.at)
            found = self._by_systemd(unit, write.at, seen, called=write.at - _PROMPT)
            return replace(found, writer=write.writer, since=write.at)
        return _by_itself(write.writer, write.requester, write.at)

    def certain(self, unit: str, write: Write) -> bool:
        """Whether nothing that is heard later can say better what a write is put down to."""
        cause = self.of_write(unit, write)
        by_systemd = cause.writer is not None and cause.writer.role is Role.SYSTEMD
        told = cause.cause not in {"property", "runtime"} or bool(cause.properties)
        return bool(cause.requester) and (told or not by_systemd)

    def own(self, unit: str, now: float) -> bool:
        """Whether systemd has just written a unit's devices for gpuguard itself, and for nobody else since."""
        at = self._declared.get(unit)
        return at is not None and now - at < _FRESH and self._reload_at(now, at) is None

    def of_loss(self, unit: str, control_group: str, now: float, whole_at: Optional[float] = None) -> Cause:
        """Put a loss that is seen now down to what happened last. Unknown stays unknown.

        What was before it was seen whole (`whole_at`) did not take it.
        """
        since, write, hint = whole_at or 0.0, self._writes.get(control_group), self._hint
        if write is not None and write.at >= since:
            return self.of_write(unit, write)
        if hint is not None and (now - hint.at >= _FRESH or hint.at < since):
            hint = None
        if hint is not None and hint.writer is not None and hint.writer.role in _WORDS:
            if self._reload_at(now, since) is None and self._call_at(unit, now, since - _PROMPT) is None:
                return _by_itself(hint.writer, hint.requester, hint.at)
            hint = None
        seen = ((), 0.0) if hint is None else (hint.requester, hint.at)
        found = self._by_systemd(unit, now, seen, since=since, called=since - _PROMPT)
        if found.cause != "unknown":
            return found
        return Cause() if hint is None or hint.name != self._systemd.name else replace(found, since=hint.at)

    def _by_systemd(
        self, unit: str, at: float, seen: tuple[Lineage, float], *, called: float, since: float = 0.0
    ) -> Cause:
        """Tell why systemd had written by a moment; `seen`: who was seen waiting for it, and when.

        A reload that was over before `since`, or a call from before `called`, was not it.
        """
        requester, seen_at = seen
        asked = request_of(requester[0].command) if requester else None
        reload, call = self._reload_at(at, since), self._call_at(unit, at, called)
        other = asked is not None and not _reloads(asked) and asked.concerns(unit)
        news = max(seen_at if other else 0.0, call.at if call is not None else 0.0)
        if reload is not None and not (reload.ended is not None and reload.ended < news):
            caller = requester if _reloads(asked) else self._reloader(reload.began)
            return Cause(reload.kind, self._systemd, caller, since=reload.began)
        if call is not None:
            caller = (requester if other else ()) or self._as_seen(call.caller, at) or self._short_lived(unit, at)[0]
            # One that has just ended has no executable any more, and his parent may have.
            runtime = any(process.role is Role.RUNTIME for process in caller[:2])
            word = "runtime" if runtime else "property"
            return Cause(word, self._systemd, caller, call.properties, call.at)
        if self._reload_call is not None and self._pending(self._reload_call, at) and not asked:
            return Cause("reload", self._systemd, self._reload_call.caller, since=at)
        if asked is None or not asked.concerns(unit):
            requester, asked = self._short_lived(unit, at)
        if asked is None:
            return Cause("unknown", self._systemd)
        return Cause(asked.cause, self._systemd, requester, asked.properties, at)

    @property
    def _kind(self) -> ReloadKind:
        return "reexec" if self._replaced else "reload"

    def _reload_at(self, at: float, since: float) -> Optional[_Reload]:
        """Return the reload that was under way then, or had ended not long before and after `since`."""
        if self._began is not None and self.reloading(at) and self._began <= at:
            return _Reload(self._kind, self._began)
        last = self._last
        if last is None or last.ended is None or not last.began <= at < last.ended + _FRESH or since > last.ended:
            return None
        return last

    def _reloader(self, began: float) -> Lineage:
        """Return who asked for the reload that began then: who was seen waiting, before who has called over the bus.

        Anybody may call; whether systemd has refused him is not heard.
        """
        since = began - _FRESH
        seen = next((line for line in self._waited(since) if _reloads(request_of(line[0].command))), None)
        call = self._reload_call
        if seen is None and call is not None and call.caller and since <= call.at:
            return self._as_seen(call.caller, began)
        recent = (line for line in self.recent(since) if _reloads(request_of(line[0].command)))
        return seen or next(recent, ())

    def _waited(self, since: float) -> Iterator[Lineage]:
        yield from (lineage for at, lineage in reversed(self._waiting) if at >= since)

    def _askers(self, since: float) -> Iterator[Lineage]:
        """Yield those who were seen asking systemd for something since then, the latest first."""
        yield from self._waited(since)
        yield from self.recent(since)

    def _as_seen(self, caller: Lineage, at: float) -> Lineage:
        """Return a caller as it was seen before: one that was about to end when the bus told of it is but a name."""
        if caller and not caller[0].command:
            for lineage in self._askers(at - _FRESH):
                if lineage[0].pid == caller[0].pid:
                    return lineage
        return caller

    def _pending(self, call: _Call, at: float) -> bool:
        """Whether a reload was asked for and its signals have not come yet."""
        seen = self._last is not None and self._last.ended is not None and self._last.ended >= call.at
        return call.at <= at < call.at + _LONGEST_RELOAD and not seen

    def _short_lived(self, unit: str, at: float) -> tuple[Lineage, Optional[Request]]:
        """Return who may have asked for it and was gone when it was looked for."""
        for lineage in self._askers(at - _FRESH):
            asked = request_of(lineage[0].command)
            if asked is not None and asked.concerns(unit):
                return lineage, asked
        return (), None

    def _call_at(self, unit: str, at: float, since: float) -> Optional[_Call]:
        """Return the last call about a unit, if it came after `since` and not too long before that moment."""
        call = self._calls.get(unit)
        return call if call is not None and call.at >= since and abs(at - call.at) < _FRESH else None


def _by_container(hint: ProgramsChanged) -> bool:
    return hint.writer is not None and hint.writer.role is Role.CONTAINER


def _by_itself(writer: Process, line: Lineage, at: float) -> Cause:
    """Put a change down to a writer that nobody asked for it; `line` is the writer's own."""
    ancestors = tuple(process for process in line if process.pid != writer.pid)
    return Cause(_WORDS.get(writer.role, "unknown"), writer, ancestors, since=at)


def _reloads(asked: Optional[Request]) -> bool:
    return asked is not None and asked.cause in {"reload", "reexec"}


def _keep(table: dict[str, _Value], key: str, value: _Value) -> None:
    table.pop(key, None)
    table[key] = value
    if len(table) > _MAX_UNITS:
        del table[next(iter(table))]
