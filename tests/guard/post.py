"""A guard at work in this process, with all its sources, on a simulated node."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping
from typing import Any, Optional

from prometheus_client.parser import text_string_to_metric_families

from gpuguard import __version__
from gpuguard.config import Settings
from gpuguard.guard.build import assemble
from gpuguard.guard.clock import Clock
from gpuguard.guard.guard import Guard
from gpuguard.guard.listen import Listener
from gpuguard.guard.scope import Scope
from gpuguard.model.reports import DaemonReport
from gpuguard.model.state import State
from gpuguard.report.metrics import Metrics
from gpuguard.systemd.monitor import MonitorSource
from gpuguard.systemd.signals import SignalSource
from tests.guard.log import Entry, capturing_log
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope
from tests.report.support import until

SETTLE = 0.05
# Seconds between two quick rounds of the clock.
QUICK = 0.02
# No round of the clock in the length of a test, after those that a start brings: what is seen, a source has seen.
NEVER = "5m"

Tables = Mapping[str, Mapping[str, object]]


def settings(node: SimNode, tables: Optional[Tables] = None) -> Settings:
    """Return settings for a node: those of a test on top of quick ones."""
    quick: dict[str, Mapping[str, object]] = {
        "guard": {"settle": f"{SETTLE * 1000:.0f}ms", "poll_interval": "100ms"},
        "paths": node.config_paths(),
    }
    merged = {name: {**quick.get(name, {}), **(tables or {}).get(name, {})} for name in {**quick, **(tables or {})}}
    return Settings.from_mapping(merged)


class Post:
    """A guard at its post. Get it by the fixture `station`; it runs in the test's own loop."""

    def __init__(self, node: SimNode, tables: Optional[Tables] = None, *, enforce: bool = True) -> None:
        self.node = node
        self.metrics = Metrics()
        self.log: list[Entry] = []
        self._settings = settings(node, tables)
        self._enforce = enforce
        self._stack = contextlib.AsyncExitStack()

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self.assembly.guard

    def build(self) -> None:
        """Build all parts, inside the running loop, and let nothing begin."""
        log, self.log = capturing_log()
        guard = self._settings.guard
        self.assembly = assemble(
            self._settings, self.metrics, log, enforce=self._enforce, settle=guard.settle, writable=True
        )
        self._stack.push_async_callback(self.assembly.close)
        self.clock = Clock(self.guard, self.assembly.watch, guard.poll_interval, guard.settle)
        self.listener = Listener(
            self.guard, self.assembly.watch, self.clock, self.assembly.link, self.assembly.processes
        )
        self._stack.callback(self.listener.close)

    async def start(self) -> Post:
        """Begin to guard, as the daemon does."""
        self.build()
        bus = self._settings.paths.bus
        self._tasks = [
            asyncio.ensure_future(work)
            for work in (
                self.clock.run(),
                SignalSource(bus, self.listener.take, self.guard.parts.units.wanted).run(),
                MonitorSource(bus, self.listener.take).run(),
            )
        ]
        self._stack.push_async_callback(self._end)
        return self

    async def _end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def stop(self) -> None:
        """End, and leave the node as it is."""
        await self._stack.aclose()

    def describe(self) -> DaemonReport:
        """Tell of itself, as a daemon does."""
        recorder = self.guard.parts.recorder
        return DaemonReport(
            __version__,
            "enforce" if self._enforce else "observe",
            self._settings.to_toml(),
            sources=recorder.sources.report(),
            standing=recorder.sources.standing,
            pid=os.getpid(),
        )

    def of(self, scope: SimScope) -> Scope:
        """Return what the guard has of a scope."""
        return self.guard.scopes[scope.group]

    def entitled(self, scope: SimScope) -> set[str]:
        """Return the rules that a scope is entitled to, as lines."""
        entitled = self.of(scope).entitled
        return set() if entitled is None else set(map(str, entitled.rules))

    def state(self, scope: SimScope) -> Optional[State]:
        """Return the state of a scope, None while it is not known."""
        return self.guard.scopes[scope.group].state if scope.group in self.guard.scopes else None

    async def becomes(self, scope: SimScope, state: State) -> None:
        """Wait until a scope is in a state, and all looks are over."""
        await self.until(lambda: self.state(scope) is state, f"{scope.name} never became {state.value}")
        await self.assembly.watch.idle()

    async def until(self, condition: Any, failure: str) -> None:  # noqa: ANN401 - a callable of anything
        """Wait until a condition holds; fail with what happened up to then."""
        try:
            await until(condition)
        except AssertionError as error:
            raise AssertionError(f"{failure}; log: {self.log}") from error

    async def sources_up(self) -> None:
        """Wait until every source delivers."""
        await self.until(
            lambda: all(self.value("gpuguard_source_up", source=name) for name in ("signals", "units", "monitor")),
            "the sources did not come up",
        )
        await self.assembly.watch.idle()

    async def quiet(self) -> None:
        """Wait until every source delivers and the quick rounds that this brought are over."""
        await self.sources_up()
        self.clock._quick_until = 0.0
        before = -1.0
        while before != (before := self.value("gpuguard_poll_seconds_count")):  # noqa: ASYNC110 - no event tells of calm
            await asyncio.sleep(5 * QUICK)

    async def rounds(self, number: int) -> None:
        """Wait for some rounds of the clock, and the looks that they bring."""
        want = self.value("gpuguard_poll_seconds_count") + number
        await self.until(lambda: self.value("gpuguard_poll_seconds_count") >= want, "the clock stands still")
        await self.assembly.watch.idle()

    def events(self, *kinds: str) -> list[Entry]:
        """Return the entries of the log of these kinds; none: those that have a kind."""
        return [entry for entry in self.log if "kind" in entry and (not kinds or entry["kind"] in kinds)]

    def kinds(self) -> list[str]:
        """Return what kinds of events were told, in order."""
        return [entry["kind"] for entry in self.events()]

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have these labels."""
        _, text = self.metrics.render()
        return sum(
            sample.value
            for family in text_string_to_metric_families(text.decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )
