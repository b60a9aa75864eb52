"""All that tells the guard to look: put together, run, and ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from gpuguard.config import Settings
from gpuguard.errors import CgroupUnreadableError
from gpuguard.guard.build import Assembly
from gpuguard.guard.clock import Clock
from gpuguard.guard.listen import Listener
from gpuguard.guard.sentinel import SENTINEL
from gpuguard.guard.written import Writes
from gpuguard.kernel.executions import ExecutionSource
from gpuguard.kernel.uevents import UEVENTS, UeventSource
from gpuguard.model.device_event import DeviceEvent
from gpuguard.model.process import Process
from gpuguard.model.requester import request_of
from gpuguard.source import SourceDown, SourceUp
from gpuguard.systemd.monitor import MonitorSource
from gpuguard.systemd.signals import SignalSource

# A driver that is loaded tells of itself and of each of its devices. Whoever can make events makes no more entries.
_MOST_TOLD = 32
_WITHIN = 60.0
# What only changes has the numbers that it had.
_NEWS = frozenset({"add", "remove", "bind", "unbind"})


class Sources:
    """The event sources of one guard. Each can fail alone; with all of them gone the clock is enough."""

    def __init__(self, settings: Settings, assembly: Assembly, clock: Clock) -> None:
        self._settings = settings
        self._assembly = assembly
        self._clock = clock
        self._told: deque[float] = deque(maxlen=_MOST_TOLD)
        guard, watch = assembly.guard, assembly.watch
        self.listener = Listener(guard, watch, clock, assembly.link, assembly.processes)
        self._executions = ExecutionSource(Path(settings.paths.proc), self.listener.take)
        self._writes = Writes(guard, watch, clock, self.listener.look_at_all, self._executions.by_pid)
        guard.parts.causes.recent = self._requesters

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """Return what must run for the sources to deliver."""
        paths, listener, parts = self._settings.paths, self.listener, self._assembly.guard.parts
        return [
            self._clock.run(),
            SignalSource(paths.bus, listener.take, parts.units.wanted).run(),
            MonitorSource(paths.bus, listener.take).run(),
            parts.sentinel.run(
                self._writes.take,
                lambda: listener.take(SourceUp(SENTINEL)),
                lambda reason: listener.take(SourceDown(SENTINEL, reason)),
            ),
            self._executions.run(),
            UeventSource(parts.guarded.classes, self._device, listener.take).run(),
        ]

    def close(self) -> None:
        """Drop what is still to come of what was told."""
        self.listener.close()
        self._writes.close()

    def _requesters(self, since: float) -> list[tuple[Process, ...]]:
        return self._executions.requesters(lambda command: request_of(command) is not None, since)

    def _device(self, event: DeviceEvent) -> None:
        """See a driver or a device come or go: what its number means may have changed."""
        parts, now = self._assembly.guard.parts, time.monotonic()
        parts.recorder.metrics.source_event(UEVENTS)
        try:
            parts.guarded.refresh()
        except CgroupUnreadableError as error:  # the next round tries again
            parts.recorder.troubles.met("/", error)
        self._clock.soon()
        if event.action in _NEWS and (len(self._told) < _MOST_TOLD or now - self._told[0] > _WITHIN):
            self._told.append(now)
            parts.recorder.sources.device(event.action, _subject(event))


def _subject(event: DeviceEvent) -> str:
    if event.subsystem == "module":
        return f"the driver {event.driver}"
    return f"the device {event.devpath}" + (f" ({event.driver})" if event.driver else "")
