"""Tell the journal what could not be done or read, and of faults of gpuguard's own: each once while it lasts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from structlog.typing import FilteringBoundLogger

from gpuguard.report.kinds import KINDS, emit

# A trouble that was not met for so long, in seconds, is news when it comes back: longer than it takes until a file that
# is not believed is read again (records.py).
_OVER = 900.0
_MOST = 1024
_MAX_TEXT = 1024
# Containers in that time of whose files it is told that they are not believed: on some nodes none are.
_MOST_UNBELIEVED = 3


@dataclass
class TroubleRecorder:
    """What was told of troubles.

    `_met` has the text and the time of the last one of each control group, the one longest ago first.
    """

    log: FilteringBoundLogger
    _met: dict[str, tuple[str, float]] = field(default_factory=dict)
    _unbelieved: dict[str, float] = field(default_factory=dict)

    def take_over(self, other: TroubleRecorder) -> None:
        """Go on from what another one has told: that is not told again."""
        self._met, self._unbelieved = dict(other._met), dict(other._unbelieved)

    def forget(self, control_group: str) -> None:
        """Forget the trouble of a control group that is gone."""
        self._met.pop(control_group, None)

    def met(self, control_group: str, error: Exception) -> None:
        """Tell what could not be done or read; not again while it lasts unchanged."""
        now, text = time.monotonic(), str(error)[:_MAX_TEXT]
        known, before = self._met.pop(control_group, ("", 0.0))
        while len(self._met) >= _MOST:
            del self._met[next(iter(self._met))]
        self._met[control_group] = (text, now)
        if text != known or now - before > _OVER:
            emit(self.log, KINDS.trouble, scope=_unit(control_group), reason=text)

    def unbelieved(self, control_group: str, error: Exception) -> None:
        """Tell of a runtime's files that say nothing, for a few containers; `explain` tells of each."""
        now = time.monotonic()
        self._unbelieved = {group: at for group, at in self._unbelieved.items() if now - at < _OVER}
        if control_group in self._unbelieved or len(self._unbelieved) < _MOST_UNBELIEVED:
            self._unbelieved[control_group] = now
            self.met(control_group, error)

    def fault(self, control_group: str, error: Exception) -> None:
        """Tell of a fault in gpuguard itself; the scope is looked at again at the next round."""
        emit(self.log, KINDS.fault, scope=_unit(control_group), exc_info=error)

    def ledger_damaged(self, path: str, reason: str) -> None:
        """Tell that a file of the ledger cannot be used."""
        emit(self.log, KINDS.ledger_damaged, path=path, reason=reason)


def _unit(control_group: str) -> str:
    group = control_group.removesuffix("/*") or "/"
    return PurePosixPath(group).name or group
