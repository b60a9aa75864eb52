"""Turn what the event sources say into looks. Sources never decide; each can fail alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from gpuguard.guard.clock import Clock
from gpuguard.guard.guard import Guard
from gpuguard.guard.watch import Watch
from gpuguard.kernel.executions import EXECUTIONS
from gpuguard.kernel.processes import Processes
from gpuguard.model.requester import request_of
from gpuguard.systemd import events
from gpuguard.systemd.link import Link

# The monitor shows a call before systemd has carried it out, which takes it a millisecond or, when it
# is busy, seconds. What happens later than that the clock sees.
_AFTER_CALL = (0.02, 0.2, 1.0)
# Seconds for which the sentinel expects losses by a reload of which the end is not told.
_AWAKE = 30.0
# Seconds for a search among the processes, during which nothing else is done.
_SEARCH = 0.005


class Listener:
    """Takes events, and asks the watch for looks at the scopes that they concern."""

    def __init__(self, guard: Guard, watch: Watch, clock: Clock, link: Link, processes: Processes) -> None:
        self._guard = guard
        self._watch = watch
        self._clock = clock
        self._link = link
        self._processes = processes
        self._follow_up: dict[str, dict[float, asyncio.TimerHandle]] = {}

    def take(self, event: events.Event) -> None:
        """Take one event. Does not block and does not raise."""
        if isinstance(event, (events.SourceUp, events.SourceDown)):
            self._source(event)
        elif isinstance(event, events.Called):
            self._guard.parts.recorder.metrics.source_event(events.MONITOR)
            self._called(event)
        elif isinstance(event, (events.UnitNew, events.UnitRemoved)):
            self._guard.parts.recorder.metrics.source_event(events.UNITS)
            self._unit(event)
        else:
            self._guard.parts.recorder.metrics.source_event(events.SIGNALS)
            self._manager(event)

    def close(self) -> None:
        """Drop the looks that are still to come."""
        for handles in self._follow_up.values():
            for handle in handles.values():
                handle.cancel()
        self._follow_up.clear()

    def look_at_all(self) -> None:
        """Ask for a look at every scope, whatever is remembered."""
        for control_group in list(self._guard.scopes):
            self._watch.want(control_group, fresh=True)

    def _manager(self, event: events.Event) -> None:
        now, causes, sentinel = time.monotonic(), self._guard.parts.causes, self._guard.parts.sentinel
        if isinstance(event, events.ManagerReplaced):
            causes.manager_replaced()
        elif isinstance(event, events.Reloading) and event.active:
            sentinel.awake(_AWAKE)
            # systemctl waits, for a reexec only until that begins, which this is.
            causes.reload_began(now, self._processes.requester(_reloads, _SEARCH))
        elif isinstance(event, events.Reloading):
            # Sent after the device lists were rewritten (systemd's manager_dispatch_dbus_queue).
            sentinel.awake(0.0)
            self._guard.parts.recorder.metrics.reload(causes.reload_ended(now))
            self.look_at_all()
            # The source passes over units that come during a reload, among them new ones.
            self._clock.soon()

    def _unit(self, event: events.Event) -> None:
        """See a unit come or go. During a reload every unit does, and only one not yet known is news."""
        reloading = self._guard.parts.causes.reloading(time.monotonic())
        if isinstance(event, events.UnitNew):
            if not reloading or not self._known(event.name):
                self._clock.hurry()
        elif isinstance(event, events.UnitRemoved) and not reloading:
            for control_group in self._known(event.name):
                self._watch.want(control_group, fresh=False)

    def _called(self, event: events.Called) -> None:
        if event.sender == self._link.unique_name:
            return
        parts = self._guard.parts
        # Anybody may call, and whether systemd has refused him is not heard: a user is not blamed for what root does.
        if event.pid is None or self._processes.user(event.pid) in {0, None}:
            caller = self._processes.lineage(event.pid) if event.pid is not None else ()
            parts.causes.called(event, caller, time.monotonic())
        if event.unit is None:
            return
        if event.member == "StartTransientUnit" and parts.units.wanted(event.unit):
            self._clock.hurry()
        elif event.member == "SetUnitProperties":
            for control_group in self._known(event.unit):
                self._look_soon(control_group)

    def _look_soon(self, control_group: str) -> None:
        """Look a few times from now on; a stream of calls puts off only the last of the looks."""
        loop = asyncio.get_running_loop()
        handles = self._follow_up.setdefault(control_group, {})
        last = handles.pop(_AFTER_CALL[-1], None)
        if last is not None:
            last.cancel()
        for delay in _AFTER_CALL:
            if delay not in handles:
                handles[delay] = loop.call_later(delay, self._followed_up, control_group, delay)

    def _followed_up(self, control_group: str, delay: float) -> None:
        handles = self._follow_up[control_group]
        del handles[delay]
        if not handles:
            del self._follow_up[control_group]
        self._watch.want(control_group, fresh=True)

    def _known(self, unit: str) -> list[str]:
        return [group for group, scope in self._guard.scopes.items() if scope.target.unit == unit]

    def _source(self, event: events.Event) -> None:
        recorder = self._guard.parts.recorder
        if isinstance(event, events.SourceUp):
            recorder.sources.up(event.source)
            if event.source != EXECUTIONS:  # what it missed are names, and no changes
                self._clock.hurry()
                self.look_at_all()
        elif isinstance(event, events.SourceDown):
            if event.source == events.SIGNALS:
                self._guard.parts.causes.lost_sight()
            recorder.sources.down(event.source, event.reason)


def _reloads(command: Sequence[str]) -> bool:
    asked = request_of(command)
    return asked is not None and asked.cause in {"reload", "reexec"}
