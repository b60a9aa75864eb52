"""The daemon's control socket: commands that change something ask the daemon, if one runs, to do it.

One JSON document in one line each way. The socket lies in the run directory and is root's alone.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Optional, Union

from gpuguard.errors import GpuguardError, NotFoundError
from gpuguard.model.explanation import LastWriter
from gpuguard.model.last_writer import from_document
from gpuguard.model.reports import DaemonReport, ReleaseReport, Repair, RepairReport, SourceReport, WriterReport
from gpuguard.model.state import State
from gpuguard.model.write import Standing

SOCKET = "control.sock"
_MAX_LINE = 1 << 20
_REQUEST_TIME = 5.0
# A repair of all containers waits for systemd, which may be busy.
_ANSWER_TIME = 300.0

# Seconds that a client waits for its place in the queue, and for an answer that needs no work.
_CONNECT_TIME = 1.0
_CONNECT_RETRY = 0.02

Report = Union[RepairReport, ReleaseReport, DaemonReport, WriterReport]
Answer = Callable[[dict[str, Any]], Awaitable[Report]]


class ControlServer:
    """Answers requests on the control socket with `answer`, which may raise GpuguardError."""

    def __init__(self, run: Path, answer: Answer) -> None:
        self._path = run / SOCKET
        self._answer = answer
        self._server: asyncio.AbstractServer | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self._stopped = False

    async def start(self) -> None:
        """Listen; whoever holds the guard's lock may take the place of a socket that was left behind."""
        self._path.unlink(missing_ok=True)
        try:
            self._server = await asyncio.start_unix_server(self._begin, str(self._path), limit=_MAX_LINE, backlog=8)
            self._path.chmod(0o600)
        except OSError as error:
            # Python itself refuses a path that is too long, without an error number.
            raise GpuguardError(f"{self._path}: cannot listen: {error.strerror or error}") from error

    async def stop(self) -> None:
        """Stop listening, remove the socket, and end the requests under way."""
        self._stopped = True
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)
        for session in self._sessions:
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def _begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopped:  # it was accepted in the last moment
            writer.transport.abort()
            return
        session = asyncio.ensure_future(self._serve(reader, writer))
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)
        session.add_done_callback(lambda _: writer.close())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = await asyncio.wait_for(reader.readline(), _REQUEST_TIME)
            writer.write(json.dumps(await self._respond(line)).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), _REQUEST_TIME)
        except (OSError, ValueError, asyncio.TimeoutError):
            return  # a client that does not ask, or does not listen, gets no answer

    async def _respond(self, line: bytes) -> dict[str, Any]:
        try:
            return {"report": asdict(await self._answer(json.loads(line)))}
        except NotFoundError as error:
            return {"not_found": str(error)}
        except (GpuguardError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
            return {"error": str(error)}  # also what a request that is not ours makes of the verbs


async def daemon_runs(run: Path) -> Optional[bool]:
    """Whether a daemon listens on the control socket, None when that cannot be told."""
    try:
        link = await _connect(run)
    except BlockingIOError:  # a queue that is full is somebody's
        return True
    except (FileNotFoundError, NotADirectoryError, ConnectionRefusedError):
        return False
    except OSError:
        return None
    link.close()
    return True


async def daemon(run: Path) -> DaemonReport:
    """Ask the daemon about itself. Raises GpuguardError."""
    report = await _ask(run, {"verb": "daemon"}, _REQUEST_TIME)
    standing = report.get("standing")  # a daemon from before an upgrade tells less
    return DaemonReport(
        report["version"],
        report["mode"],
        report["settings"],
        report["trouble"],
        sources=tuple(SourceReport(row["name"], row["up"], row["reason"]) for row in report.get("sources", ())),
        standing=None if standing is None else Standing(standing["scheduling"], standing["reason"]),
        pid=report.get("pid"),
        paused=report.get("paused", {}),
        unserved=tuple(report.get("unserved", ())),
    )


async def last_writer(run: Path, name: str) -> Optional[LastWriter]:
    """Ask the daemon who wrote a container's list last, None when it does not know. Raises GpuguardError."""
    report = await _ask(run, {"verb": "last_writer", "name": name}, _REQUEST_TIME)
    try:
        return None if report["last"] is None else from_document(report["last"])
    except ValueError as error:
        raise GpuguardError(f"{run / SOCKET}: the daemon answers what makes no sense: {error}") from error


async def repair(run: Path, names: Sequence[str]) -> RepairReport:
    """Have the daemon repair. Raises GpuguardError."""
    report = await _ask(run, {"verb": "repair", "names": list(names)})
    return RepairReport(
        report["dry_run"],
        tuple(
            Repair(
                scope=row["scope"],
                id=row["id"],
                before=State(row["before"]),
                after=State(row["after"]),
                deeds=tuple(row["deeds"]),
                error=row["error"],
                name=row.get("name"),  # a daemon from before an upgrade tells less
                namespace=row.get("namespace"),
                pod=row.get("pod"),
            )
            for row in report["repairs"]
        ),
    )


async def release(run: Path, name: str, devices: Sequence[str]) -> ReleaseReport:
    """Have the daemon release devices. Raises GpuguardError."""
    report = await _ask(run, {"verb": "release", "name": name, "devices": list(devices)})
    return ReleaseReport(
        report["scope"],
        report["id"],
        tuple(report["devices"]),
        tuple(report["effective"]),
        tuple(report["declared"]),
    )


async def _ask(run: Path, request: dict[str, Any], patience: float = _ANSWER_TIME) -> Any:  # noqa: ANN401 - JSON
    try:
        reader, writer = await asyncio.open_unix_connection(sock=await _connect(run), limit=_MAX_LINE)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            answer = json.loads(await asyncio.wait_for(reader.readline(), patience))
        finally:
            writer.close()
    except PermissionError as error:
        raise GpuguardError(f"{run / SOCKET}: the daemon cannot be asked: {error.strerror}; are you root?") from error
    except (OSError, ValueError, asyncio.TimeoutError) as error:
        raise GpuguardError(f"{run / SOCKET}: the daemon does not answer: {error or 'time is up'}") from error
    if "not_found" in answer:
        raise NotFoundError(answer["not_found"])
    if "report" not in answer:
        raise GpuguardError(f"the daemon answers: {answer.get('error')}")
    return answer["report"]


async def _connect(run: Path) -> socket.socket:
    """Connect to the control socket. Raises OSError, BlockingIOError when its queue stays full.

    connect(2) of a Unix socket is done at once or answers EAGAIN, which asyncio takes for "under way".
    """
    deadline = time.monotonic() + _CONNECT_TIME
    while True:
        link = socket.socket(socket.AF_UNIX)
        link.settimeout(0)
        try:
            link.connect(str(run / SOCKET))
        except BlockingIOError:
            link.close()
            if time.monotonic() >= deadline:
                raise
        except OSError:
            link.close()
            raise
        else:
            return link
        await asyncio.sleep(_CONNECT_RETRY)
