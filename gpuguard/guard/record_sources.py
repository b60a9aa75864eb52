"""Tell Prometheus and the journal of the event sources: which work, why others do not, how the sentinel runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Optional

from structlog.typing import FilteringBoundLogger

from gpuguard.kernel.executions import EXECUTIONS
from gpuguard.model.reports import SourceReport
from gpuguard.model.write import NOT_RUNNING, Standing
from gpuguard.report.kinds import KINDS, emit
from gpuguard.report.metrics import Metrics

# What may come and go is told of once in so many seconds: on a machine that starts very many programs they rest often.
_AGAIN = 600.0
_RESTING = frozenset({EXECUTIONS})


@dataclass
class SourceRecorder:
    """What is known of the sources. `now` returns seconds of CLOCK_MONOTONIC.

    `_down` has the reason why each one that is down is down, `_told` when that was last told.
    """

    metrics: Metrics
    log: FilteringBoundLogger
    now: Callable[[], float] = time.monotonic
    _standing: Optional[Standing] = None
    _runs: bool = False
    _up: set[str] = field(default_factory=set)
    _down: dict[str, str] = field(default_factory=dict)
    _told: dict[str, float] = field(default_factory=dict)
    _owed: set[str] = field(default_factory=set)

    def take_over(self, other: SourceRecorder) -> None:
        """Go on from what another one has told: that is not told again."""
        self._down, self._told, self._owed = dict(other._down), dict(other._told), set(other._owed)
        self._standing = other._standing

    def up(self, source: str) -> None:
        """Tell that a source works, if it was told that it did not."""
        self.metrics.source_up(source, up=True)
        self._up.add(source)
        self._down.pop(source, None)
        if source in self._owed:
            self._owed.discard(source)
            emit(self.log, KINDS.source_up, source=source)

    def down(self, source: str, reason: str) -> None:
        """Tell that a source works no more."""
        self.metrics.source_up(source, up=False)
        self._up.discard(source)
        same = self._down.get(source) == reason
        self._down[source] = reason
        if same or (source in _RESTING and self.now() - self._told.get(source, float("-inf")) < _AGAIN):
            return
        self._told[source] = self.now()
        self._owed.add(source)
        emit(self.log, KINDS.source_down, source=source, reason=reason)

    def report(self) -> tuple[SourceReport, ...]:
        """Return which sources work, and why the others do not."""
        works = {source: SourceReport(source, up=True) for source in self._up}
        broken = {source: SourceReport(source, up=False, reason=reason) for source, reason in self._down.items()}
        return tuple(report for _, report in sorted({**works, **broken}.items()))

    def stands(self, standing: Standing) -> None:
        """Tell how the sentinel runs, in the journal not again when another one runs as the one before."""
        if standing.scheduling == NOT_RUNNING:
            self.metrics.sentinel(None)
            self._runs = False
            return
        self._runs = True
        self.metrics.sentinel(standing.scheduling)
        if standing != self._standing:
            emit(self.log, KINDS.sentinel_standing, scheduling=standing.scheduling, reason=standing.reason)
        self._standing = standing

    @property
    def standing(self) -> Optional[Standing]:
        """How the sentinel runs, None for not at all or not known."""
        return self._standing if self._runs else None

    def lost(self, source: str) -> None:
        """Tell that the kernel had more to tell than was read; not again and again."""
        key = f"{source} events"
        if self.now() - self._told.get(key, float("-inf")) >= _AGAIN:
            self._told[key] = self.now()
            emit(self.log, KINDS.events_lost, source=source)

    def device(self, action: str, subject: str) -> None:
        """Tell that a device or its driver came or went."""
        emit(self.log, KINDS.device_event, action=action, subject=subject)
