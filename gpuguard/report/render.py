"""structlog's last step: an event as a journal entry, a line of JSON, or a line for people. Pure but for the time."""

from __future__ import annotations

import json
import time
from collections.abc import MutableMapping
from datetime import datetime, timezone
from typing import Any

from gpuguard.report.clean import clean
from gpuguard.report.kinds import KINDS
from gpuguard.report.phrases import text

Event = MutableMapping[str, Any]

# syslog(3). structlog has no notice.
_PRIORITIES = {"debug": "7", "info": "6", "warning": "4", "error": "3", "critical": "2"}
_COLOURS = {"debug": "2", "warning": "33", "error": "31", "critical": "1;31"}
_MAX_LINE = 4096


def journal_entry(_logger: object, level: str, event: Event) -> tuple[tuple[list[tuple[str, str]]], dict[str, Any]]:
    """Return the fields: each key as GPUGUARD_<KEY>, with one field per member of a list, and the kind's MESSAGE_ID."""
    message = text(event.pop("event", ""))
    if "exception" in event:
        message += "\n" + text(event.pop("exception"))
    fields = [("MESSAGE", message), ("PRIORITY", _PRIORITIES[level]), ("SYSLOG_IDENTIFIER", "gpuguard")]
    if "kind" in event:
        fields.append(("MESSAGE_ID", KINDS[event["kind"]].message_id))
    for key, value in event.items():
        members = value if isinstance(value, (list, tuple)) else (value,)
        fields.extend((f"GPUGUARD_{key}", text(member)) for member in members)
    return (fields,), {}


def json_line(_logger: object, level: str, event: Event) -> str:
    """Return one JSON object, with a timestamp in UTC."""
    head = {"timestamp": datetime.now(timezone.utc).isoformat(), "level": level, "event": event.pop("event", "")}
    if "kind" in event:
        head["message_id"] = KINDS[event["kind"]].message_id
    return json.dumps({**head, **event}, default=text)


class ConsoleLine:
    """A line for people: local time, level, message. What is no KINDS shows its fields too: no sentence names them."""

    def __init__(self, *, colour: bool) -> None:
        self._colour = colour

    def __call__(self, _logger: object, level: str, event: Event) -> str:
        """Return the line; a traceback follows on lines of its own."""
        lines = text(event.pop("exception", "")).splitlines()
        words = [text(event.pop("event", ""))]
        if "kind" not in event:
            words += [f"{key}={text(value)}" for key, value in event.items()]
        lines.insert(0, f"{time.strftime('%H:%M:%S')} {level:<8} {' '.join(words)}")
        shown = "\n    ".join(clean(line, _MAX_LINE) for line in lines)
        colour = _COLOURS.get(level) if self._colour else None
        return f"\x1b[{colour}m{shown}\x1b[0m" if colour else shown
