"""The daemon: builds the parts, starts and stops them, and stays alive for systemd's watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, Optional

import structlog
from structlog.typing import FilteringBoundLogger

from gpuguard import __version__
from gpuguard.config import DEFAULT_FILE, Settings, load
from gpuguard.errors import BusError, ConfigError, GpuguardError
from gpuguard.guard import verbs
from gpuguard.guard.build import Assembly, assemble
from gpuguard.guard.clock import Clock
from gpuguard.guard.control import ControlServer
from gpuguard.guard.listen import Listener
from gpuguard.guard.lock import guard_lock
from gpuguard.guard.statuses import statuses, summary
from gpuguard.report.http import Server
from gpuguard.report.kinds import KINDS, emit
from gpuguard.report.log import configure
from gpuguard.report.metrics import Metrics
from gpuguard.report.tls import TlsFiles
from gpuguard.systemd.monitor import MonitorSource
from gpuguard.systemd.notify import Notifier
from gpuguard.systemd.signals import SignalSource

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

    async def run(self, settings: Settings) -> None:
        """Guard until told to stop."""
        stop, reload = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        loop.add_signal_handler(signal.SIGHUP, reload.set)
        while not stop.is_set():
            await self._serve(settings, stop, reload)
            if reload.is_set():
                reload.clear()
                self._notify.reloading()
                settings = await self._reload(settings)
        self._notify.stopping()
        emit(self._log, KINDS.stopped)

    async def _reload(self, settings: Settings) -> Settings:
        """Return the new settings, or the old ones when the guard could not be built with the new."""
        try:
            new = load(self._path)
            await self._assemble(new).close()
        except GpuguardError as error:
            emit(self._log, KINDS.config_rejected, reason=str(error))
            return settings
        configure(new.log.format, new.log.level)
        emit(self._log, KINDS.config_reloaded, path=str(self._path or DEFAULT_FILE))
        return new

    async def _serve(self, settings: Settings, stop: asyncio.Event, reload: asyncio.Event) -> None:
        """Run all parts with these settings until a signal comes. Raises what a part fails with."""
        async with contextlib.AsyncExitStack() as stack:
            assembly = self._assemble(settings)
            stack.push_async_callback(assembly.close)
            clock = Clock(assembly.guard, assembly.watch, settings.guard.poll_interval, settings.guard.settle)
            listener = Listener(assembly.guard, assembly.watch, clock, assembly.link)
            stack.callback(listener.close)
            control = ControlServer(Path(settings.paths.run), verbs.Desk(assembly).answer)
            await control.start()
            stack.push_async_callback(control.stop)
            http = self._http(settings, assembly, clock)
            stack.push_async_callback(http.stop)
            clock.round()
            await _first_of(stop.wait(), self._begin(settings, assembly), clock.run(), self._heartbeat(assembly, clock))
            if stop.is_set():
                return
            await _first_of(
                stop.wait(),
                reload.wait(),
                clock.run(),
                SignalSource(settings.paths.bus, listener.take, assembly.guard.parts.units.wanted).run(),
                MonitorSource(settings.paths.bus, listener.take).run(),
                self._heartbeat(assembly, clock),
                self._keep_textfile(settings.metrics.textfile, assembly),
                self._open(http, settings.metrics.listen),
            )

    async def _begin(self, settings: Settings, assembly: Assembly) -> None:
        """Wait for the first look at everything, and tell systemd and the journal that the guard is at work."""
        with contextlib.suppress(asyncio.TimeoutError):  # then the looks go on beside the sources
            await asyncio.wait_for(assembly.watch.idle(), _FIRST_LOOK)
        await self._announce(settings, assembly)

    async def _open(self, http: Server, listen: str) -> None:
        """Open the HTTP endpoint. One that cannot be had (an address in use) does not end the guard."""
        complaint: Optional[str] = "" if listen else None
        while complaint is not None:
            reason = await _start(http)
            if reason is not None and reason != complaint:
                emit(self._log, KINDS.endpoint_failed, reason=reason)
            complaint = reason
            await asyncio.sleep(_HEARTBEAT)
        await asyncio.Event().wait()

    def _http(self, settings: Settings, assembly: Assembly, clock: Clock) -> Server:
        def render(accept: str) -> tuple[str, bytes]:
            self._count(assembly)
            return self._metrics.render(accept)

        tls = settings.metrics
        files = TlsFiles(tls.tls_cert, tls.tls_key, tls.client_ca or None) if tls.tls_cert else None
        return Server(settings.metrics.listen, render, clock.late, files)

    def _assemble(self, settings: Settings) -> Assembly:
        enforce = settings.guard.mode == "enforce" and not self._observe_only
        return assemble(
            settings, self._metrics, self._log, enforce=enforce, settle=settings.guard.settle, writable=True
        )

    async def _announce(self, settings: Settings, assembly: Assembly) -> None:
        try:
            systemd = str(await assembly.guard.parts.observer.ask_version())
        except BusError:  # the event sources tell why
            systemd = "unknown"
        self._metrics.build(__version__, platform.python_version(), systemd, "v1")
        mode = "enforce" if assembly.guard.policy.enforce else "observe"
        emit(self._log, KINDS.started, version=__version__, mode=mode, cgroup="v1", systemd=systemd)
        for setting in _without_effect(settings):
            emit(self._log, KINDS.no_effect, setting=setting)
        self._ready_due = not self._notify.ready()

    def _count(self, assembly: Assembly) -> None:
        guard = assembly.guard
        self._metrics.containers(statuses(guard.scopes.values(), guard.parts.guarded.node_of))

    async def _heartbeat(self, assembly: Assembly, clock: Clock) -> None:
        """Tell systemd that the loop makes progress, and nothing while it does not."""
        interval = self._notify.watchdog_interval()
        while True:
            if self._ready_due:  # systemd was too busy to take it, and ends a service that never says it
                self._ready_due = not self._notify.ready()
            if clock.late() is None:
                self._notify.watchdog()
            self._notify.status(summary(assembly.guard.scopes.values()))
            await asyncio.sleep(min(_HEARTBEAT, (interval or _HEARTBEAT) / 2))

    async def _keep_textfile(self, name: str, assembly: Assembly) -> None:
        """Write the metrics to a file again and again. One that cannot be written does not end the guard."""
        complaint: Optional[str] = None
        while name:
            self._count(assembly)
            reason = await self._write(Path(name))
            if reason is not None and reason != complaint:
                emit(self._log, KINDS.textfile_failed, path=name, reason=reason)
            complaint = reason
            await asyncio.sleep(_HEARTBEAT)
        await asyncio.Event().wait()

    async def _write(self, textfile: Path) -> Optional[str]:
        """Write the textfile; say why it cannot be."""
        try:
            await asyncio.to_thread(self._metrics.write_textfile, textfile)
        except OSError as error:
            return error.strerror or str(error)
        return None


def _without_effect(settings: Settings) -> Iterator[str]:
    """Yield the settings that ask for what a later version will do."""
    if settings.guard.shield:
        yield "[guard] shield"
    if settings.escalate.command:
        yield "[escalate] command"


async def _start(http: Server) -> Optional[str]:
    """Start the endpoint; say why it cannot be."""
    try:
        await http.start()
    except ConfigError as error:
        return str(error)
    return None


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
