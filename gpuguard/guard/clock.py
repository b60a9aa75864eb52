"""The source that needs nothing and nobody: rounds over all scopes, quick ones while something is settling."""

from __future__ import annotations

import asyncio
import time
from typing import Optional

from gpuguard.errors import CgroupUnreadableError
from gpuguard.guard.guard import Guard
from gpuguard.guard.watch import Watch
from gpuguard.kernel.hierarchy import MOST_DIRECTORIES

CLOCK = "clock"
# While a container starts its rules come in one by one, within milliseconds.
_QUICK = 0.1
_LATE_SECONDS = 15.0
_LATE_ROUNDS = 3.0
_CROWDED = (
    f"more than {MOST_DIRECTORIES} directories are beside the slices: "
    "containers without a unit are not looked for in those beyond"
)


class Clock:
    """Finds new scopes, looks closer at those that changed, and forgets those that are gone."""

    def __init__(self, guard: Guard, watch: Watch, interval: float, settle: float) -> None:
        self._guard = guard
        self._watch = watch
        self._interval = interval
        self._linger = settle + 2.0
        self._quick_until = 0.0
        self._hurried = asyncio.Event()
        self._last_round = time.monotonic()

    def late(self) -> Optional[str]:
        """Say since when no round was made, None while they are made in time."""
        silent = time.monotonic() - self._last_round
        if silent <= max(_LATE_SECONDS, _LATE_ROUNDS * self._interval):
            return None
        return f"no look at the containers for {silent:.0f} s"

    def soon(self) -> None:
        """Make the next round now."""
        self._hurried.set()

    def hurry(self) -> None:
        """Begin quick rounds: something is starting, or a source had a gap."""
        self._quick_until = time.monotonic() + self._linger
        self._hurried.set()

    async def run(self) -> None:
        """Make rounds until cancelled."""
        while True:
            begin = time.monotonic()
            self.round()
            self._last_round = time.monotonic()
            self._guard.parts.recorder.metrics.source_event(CLOCK)
            self._guard.parts.recorder.metrics.poll(self._last_round - begin)
            await self._rest()

    def round(self) -> None:
        """Find the scopes that are there, and ask for a look at each that may have changed."""
        parts = self._guard.parts
        parts.observer.stamps.refresh()
        present: dict[str, Optional[int]] = dict.fromkeys(self._guard.scopes)
        try:
            present.update(parts.devices.units(parts.units.wanted, parts.candidates.known))
            parts.guarded.refresh()
        except CgroupUnreadableError as error:  # what is known is looked at all the same
            parts.recorder.troubles.met("/", error)
            parts.recorder.metrics.source_up(CLOCK, up=False)
        else:
            parts.recorder.metrics.source_up(CLOCK, up=True)
            if parts.devices.crowded:
                parts.recorder.troubles.met("/*", CgroupUnreadableError(_CROWDED))
        for control_group, inode in present.items():
            # After a reload a look at each is under way. What that misses, the next round sees.
            if not self._watch.busy(control_group) and not self._guard.calm(control_group, inode):
                self._watch.want(control_group, fresh=False)

    async def _rest(self) -> None:
        now = time.monotonic()
        # A container that does not settle in time (a reload, a rule that cannot be given back) is none to wait for.
        starting = any(scope.settling_for(now) < self._linger for scope in self._guard.scopes.values())
        if starting or now < self._quick_until:
            await asyncio.sleep(min(_QUICK, self._interval))
            return
        self._hurried.clear()
        # Not asyncio.wait_for: before Python 3.12 it can lose a cancellation that comes together with the result.
        timer = asyncio.get_running_loop().call_later(self._interval, self._hurried.set)
        try:
            await self._hurried.wait()
        finally:
            timer.cancel()
