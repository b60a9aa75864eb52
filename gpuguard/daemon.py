"""The daemon: builds the parts, starts and stops them, and stays alive for systemd's watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import structlog
from structlog.typing import FilteringBoundLogger

from gpuguard import __version__
from gpuguard.config import DEFAULT_FILE, Settings, load
from gpuguard.errors import BusError, GpuguardError
from gpuguard.guard import shield, verbs
from gpuguard.guard.build import Assembly, assemble
from gpuguard.guard.clock import Clock
from gpuguard.guard.control import ControlServer
from gpuguard.guard.counter import Counter
from gpuguard.guard.effect import without_effect
from gpuguard.guard.lock import guard_lock
from gpuguard.guard.sources import Sources
from gpuguard.guard.statuses import statuses, summary
from gpuguard.kernel.mode import detect
from gpuguard.model.reports import DaemonReport
from gpuguard.report.endpoint import Endpoint
from gpuguard.report.kinds import KINDS, emit
from gpuguard.report.log import configure
from gpuguard.report.metrics import Metrics
from gpuguard.report.textfile import Textfile
from gpuguard.systemd.notify import Notifier

# A command that repairs without the daemon holds the lock for some seconds.
_LOCK_PATIENCE = 15.0
_FIRST_LOOK = 30.0
_HEARTBEAT = 5.0


def run(settings: Settings, path: Optional[Path], *, observe_only: bool) -> None:
    """Guard until SIGTERM or SIGINT; at SIGHUP read `path` again. Raises GpuguardError when it cannot begin."""
    configure(settings.log.format, settings.log.level)
    with guard_lock(Path(settings.paths.run), _LOCK_PATIENCE):
        asyncio.run(Daemon(path, observe_only=observe_only).run(settings))


class Daemon:
    """One run of the daemon. A new configuration builds its parts anew: what they learnt is in the ledger."""

    def __init__(self, path: Optional[Path], *, observe_only: bool) -> None:
        self._path = path
        self._observe_only = observe_only
        self._metrics = Metrics()
        self._log: FilteringBoundLogger = structlog.get_logger()
        self._notify = Notifier()
        self._ready_due = False
        self._endpoint = Endpoint(self._log, self._render, lambda: self._clock.late() if self._clock else None)
        self._textfile = Textfile(self._log, self._count, self._metrics.write_textfile)
        self._clock: Optional[Clock] = None
        self._shown: Optional[Assembly] = None
        """The latest one that has looked at everything."""
        self._next: Optional[Settings] = None
        self._trouble: Optional[str] = None

    async def run(self, settings: Settings) -> None:
        """Guard until told to stop."""
        stop, reload = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        counter = Counter()
        control = ControlServer(Path(settings.paths.run), counter.answer)
        try:
            await control.start()
            while not stop.is_set():
                await self._serve(settings, counter, stop, reload)
                settings, self._next = self._next or settings, None
        finally:
            await control.stop()
            await self._endpoint.close()
            await self._textfile.close()
        self._notify.stopping()
        emit(self._log, KINDS.stopped)

    async def _serve(self, settings: Settings, counter: Counter, stop: asyncio.Event, reload: asyncio.Event) -> None:
        """Run all parts until a stop, or until there are other settings. Raises what a part fails with."""
        async with contextlib.AsyncExitStack() as stack:
            assembly = self._assemble(settings)
            stack.push_async_callback(assembly.close)
            stack.push_async_callback(self._unshield, assembly, stop)
            if self._shown is not None:
                assembly.guard.take_over(self._shown.guard)
            clock = Clock(assembly.guard, assembly.watch, settings.guard.poll_interval, settings.guard.settle)
            self._clock = clock
            sources = Sources(settings, assembly, clock)
            stack.callback(sources.close)
            counter.open(verbs.Desk(assembly, lambda: self._describe(settings, assembly)).answer)
            stack.push_async_callback(counter.close)
            clock.round()
            await _first_of(stop.wait(), self._begin(settings, assembly), clock.run(), self._heartbeat(assembly, clock))
            if stop.is_set():
                return
            await self._endpoint.use(settings.metrics)
            await self._textfile.use(settings.metrics.textfile)
            await _first_of(
                stop.wait(),
                self._other_settings(settings, assembly, reload),
                *sources.work(),
                self._heartbeat(assembly, clock),
                self._textfile.run(),
                self._endpoint.run(),
            )

    async def _unshield(self, assembly: Assembly, stop: asyncio.Event) -> None:
        """Remove the shields at the end; they stay over a change of settings that wants them, too."""
        after = None if stop.is_set() else self._next
        if after is None or not after.guard.shield or self._mode(after) != "enforce":
            await assembly.watch.close()
            guard = assembly.guard
            await shield.remove_all(guard.parts, guard.policy, list(guard.scopes.values()))

    async def _other_settings(self, settings: Settings, assembly: Assembly, reload: asyncio.Event) -> None:
        """Wait until a SIGHUP brings other settings; one that does not disturbs nobody."""
        while self._next is None:
            await reload.wait()
            reload.clear()
            self._notify.reloading()
            self._next = await self._read_again(settings)
            if self._next is None:
                self._tell_status(assembly)
                self._ready_due = not self._notify.ready()

    async def _read_again(self, settings: Settings) -> Optional[Settings]:
        """Read the file again; return what it says now, None when that is nothing new or the guard cannot work so."""
        try:
            new = load(self._path)
            moved, new = new.paths != settings.paths, replace(new, paths=settings.paths)
            if new != settings:
                await self._assemble(new).close()
            if self._endpoint.same(new.metrics):
                await self._endpoint.renew()
        except GpuguardError as error:
            self._trouble = f"configuration not taken: {error}"
            emit(self._log, KINDS.config_rejected, reason=str(error))
            return None
        configure(new.log.format, new.log.level)
        emit(self._log, KINDS.config_reloaded, path=str(self._path or DEFAULT_FILE), mode=self._mode(new))
        # The lock, the ledger and whoever looks for the control socket stay where they are.
        self._trouble = "[paths] has changed: that takes systemctl restart gpuguard" if moved else None
        if moved:
            emit(self._log, KINDS.needs_restart, setting="[paths]")
        return None if new == settings else new

    def _describe(self, settings: Settings, assembly: Assembly) -> DaemonReport:
        recorder = assembly.guard.parts.recorder
        return DaemonReport(
            __version__,
            self._mode(settings),
            settings.to_toml(),
            self._trouble,
            sources=recorder.sources.report(),
            standing=recorder.sources.standing,
            pid=os.getpid(),
            unserved=tuple(filter(None, (self._endpoint.trouble, self._textfile.trouble))),
        )

    async def _begin(self, settings: Settings, assembly: Assembly) -> None:
        """Wait for the first look at everything, and tell systemd and the journal that the guard is at work."""
        with contextlib.suppress(asyncio.TimeoutError):  # then the looks go on beside the sources
            await asyncio.wait_for(assembly.watch.idle(), _FIRST_LOOK)
        guard = assembly.guard
        guard.parts.recorder.keep_only(scope.target.inode for scope in guard.scopes.values())
        await self._announce(settings, assembly)
        self._shown = assembly

    def _render(self, accept: str) -> tuple[str, bytes]:
        self._count()
        return self._metrics.render(accept)

    def _mode(self, settings: Settings) -> str:
        return "observe" if self._observe_only else settings.guard.mode

    def _assemble(self, settings: Settings) -> Assembly:
        enforce = self._mode(settings) == "enforce"
        return assemble(
            settings, self._metrics, self._log, enforce=enforce, settle=settings.guard.settle, writable=True
        )

    async def _announce(self, settings: Settings, assembly: Assembly) -> None:
        try:
            systemd = str(await assembly.guard.parts.observer.ask_version())
        except BusError:  # the event sources tell why
            systemd = "unknown"
        cgroup = detect(Path(settings.paths.cgroup)).value
        self._metrics.build(__version__, platform.python_version(), systemd, cgroup)
        if self._shown is None:
            mode = self._mode(settings)
            emit(self._log, KINDS.started, version=__version__, mode=mode, cgroup=cgroup, systemd=systemd)
        for setting, where in without_effect(settings, cgroup):
            emit(self._log, KINDS.no_effect, setting=setting, where=where)
        self._tell_status(assembly)
        self._ready_due = not self._notify.ready()

    def _tell_status(self, assembly: Assembly) -> None:
        trouble = f"; {self._trouble}" if self._trouble else ""
        self._notify.status(summary(assembly.guard.scopes.values()) + trouble)

    def _count(self) -> None:
        if self._shown is not None:
            guard = self._shown.guard
            self._metrics.containers(statuses(guard.scopes.values(), guard.parts.guarded.node_of))

    async def _heartbeat(self, assembly: Assembly, clock: Clock) -> None:
        """Tell systemd that the loop makes progress, and nothing while it does not."""
        interval = self._notify.watchdog_interval()
        while True:
            if self._ready_due:  # systemd was too busy to take it, and ends a service that never says it
                self._ready_due = not self._notify.ready()
            if clock.late() is None:
                self._notify.watchdog()
            self._tell_status(assembly)
            await asyncio.sleep(min(_HEARTBEAT, (interval or _HEARTBEAT) / 2))


async def _first_of(*work: Coroutine[Any, Any, Any]) -> None:
    """Run all until the first one ends, then end the others. Raises what it failed with."""
    tasks = [asyncio.ensure_future(part) for part in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
