"""Who wrote a container's device rules last, as JSON has it: in `explain --json` and on the control socket. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Optional

from gpuguard.model.explanation import LastWriter
from gpuguard.model.process import Process


def to_document(last: LastWriter) -> dict[str, Any]:
    """Return it as JSON's own types. Times are RFC 3339, to the microsecond."""
    return {
        "at": moment(last.at),
        "cause": last.cause,
        "properties": list(last.properties),
        "writer": None if last.writer is None else _process(last.writer),
        "requester": list(last.requester),
        "request": last.request,
    }


def from_document(document: Mapping[str, Any]) -> LastWriter:
    """Return what to_document() was given, as far as it tells. Raises ValueError for anything else."""
    try:
        writer = document["writer"]
        return LastWriter(
            at=_seconds(document["at"]),
            cause=str(document["cause"]),
            properties=_texts(document["properties"]),
            writer=None if writer is None else _writer(writer),
            requester=_texts(document["requester"]),
        )
    except (TypeError, LookupError, AttributeError) as error:
        raise ValueError(f"not a last writer: {error!r}") from error


def moment(seconds: float) -> str:
    """Return a time since the epoch as RFC 3339 has it, in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="microseconds")


def _seconds(text: str) -> float:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError(f"not a last writer: {text} has no time zone")
    return found.timestamp()


def _process(process: Process) -> dict[str, Any]:
    container = process.container
    return {
        "pid": process.pid,
        "name": process.program,
        "exe": process.exe,
        "unit": process.unit,
        "container": None if container is None else container.id,
        "cgroup": process.control_group,
        "started": None if process.started is None else moment(process.started),
    }


def _writer(document: Mapping[str, Any]) -> Process:
    started: Optional[str] = document["started"]
    return Process(
        pid=int(document["pid"]),
        name=str(document["name"]),
        exe=str(document["exe"]),
        control_group=str(document["cgroup"]),
        started=None if started is None else _seconds(started),
    )


def _texts(members: object) -> tuple[str, ...]:
    if not isinstance(members, list):
        raise TypeError("want a list")
    return tuple(str(member) for member in members)
