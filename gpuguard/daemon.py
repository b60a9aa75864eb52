"""The daemon: builds the parts, starts and stops them, and stays alive for systemd's watchdog."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import signal
from collections.abc import Coroutine
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


def run(path: Optional[Path], observe_only: bool) -> int:  # noqa: FBT001 - as the command line has it
    """Guard until SIGTERM or SIGINT; return the exit code. Raises GpuguardError when it cannot begin."""
    settings = load(path)
    configure(settings.log.format, settings.log.level)
    with guard_lock(Path(settings.paths.run), _LOCK_PATIENCE):
        asyncio.run(Daemon(path, observe_only=observe_only).run(settings))
    return 0


class Daemon:
    """One run of the daemon. A new configuration builds its parts anew: what they learnt is in the ledger."""

    def __init__(self, path: Optional[Path], *, observe_only: bool) -> None:
        self._path = path
        self._observe_only = observe_only
        self._metrics = Metrics()
        self._log: FilteringBoundLogger = structlog.get_logger()
        self._notify = Notifier()

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
            with contextlib.suppress(asyncio.TimeoutError):  # then the looks go on beside the sources
                await asyncio.wait_for(assembly.watch.idle(), _FIRST_LOOK)
            await self._announce(settings, assembly)
            await _first_of(
                stop.wait(),
                reload.wait(),
                clock.run(),
                SignalSource(settings.paths.bus, listener.take, assembly.guard.parts.units.wanted).run(),
                MonitorSource(settings.paths.bus, listener.take).run(),
                self._heartbeat(settings, assembly, clock),
                self._open(http, settings.metrics.listen),
            )

    async def _open(self, http: Server, listen: str) -> None:
        """Open the HTTP endpoint. One that cannot be had (an address in use) does not end the guard."""
        complaint: Optional[str] = "" if listen else None
        while complaint is not None:
            reason = await _start(http)
            if reason is not None and reason != complaint:
                self._log.error("no metrics endpoint, trying again", reason=reason)
            complaint = reason
            await asyncio.sleep(_HEARTBEAT)
        await asyncio.Event().wait()

    def _http(self, settings: Settings, assembly: Assembly, clock: Clock) -> Server:
        parts = assembly.guard.parts

        def render(accept: str) -> tuple[str, bytes]:
            self._metrics.containers(statuses(assembly.guard.scopes.values(), parts.guarded.node_of))
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
        except BusError as error:
            systemd = "unknown"
            self._log.warning("no systemd on the bus: losses are seen by the poll alone", reason=str(error))
        self._metrics.build(__version__, platform.python_version(), systemd, "v1")
        mode = "enforce" if assembly.guard.policy.enforce else "observe"
        emit(self._log, KINDS.started, version=__version__, mode=mode, cgroup="v1", systemd=systemd)
        if settings.guard.shield:
            self._log.warning("this version does not keep the shield", setting="[guard] shield")
        self._notify.ready()

    async def _heartbeat(self, settings: Settings, assembly: Assembly, clock: Clock) -> None:
        """Tell systemd that the loop makes progress, and nothing while it does not."""
        interval = self._notify.watchdog_interval()
        textfile = Path(settings.metrics.textfile) if settings.metrics.textfile else None
        while True:
            if clock.late() is None:
                self._notify.watchdog()
            self._notify.status(summary(assembly.guard.scopes.values()))
            if textfile is not None:
                await self._write_textfile(textfile)
            await asyncio.sleep(min(_HEARTBEAT, (interval or _HEARTBEAT) / 2))

    async def _write_textfile(self, path: Path) -> None:
        try:
            await asyncio.to_thread(self._metrics.write_textfile, path)
        except OSError as error:
            self._log.warning("cannot write the textfile", path=str(path), reason=str(error))


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
