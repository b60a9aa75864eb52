"""An event as journal fields, as JSON and as a line for people."""

from __future__ import annotations

import json
import re
from datetime import datetime, timezone
from typing import Any

import pytest

from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.report.kinds import KINDS
from gpuguard.report.render import ConsoleLine, journal_entry, json_line


@pytest.fixture
def lost() -> dict[str, Any]:
    """Return an event as structlog hands it on."""
    return {
        "event": "trainer: GPU access lost",
        "kind": "lost",
        "scope": "docker-3f2a.scope",
        "container": "3f2a",
        "state": State.LOST,
        "devices": ("/dev/nvidia0", Rule.parse("c 195:255 rw")),
        "cause": "reload",
        "writer": "systemd",
        "writer_pid": 1,
        "outage_usec": 3000,
        "incident": "20261130-1",
    }


def test_journal_entry(lost: dict[str, Any]) -> None:
    """The contract's fields, one GPUGUARD_DEVICES for each device, and the kind's MESSAGE_ID."""
    ((fields,), keywords) = journal_entry(None, "warning", lost)
    assert keywords == {}
    assert [(name.upper(), text) for name, text in fields] == [
        ("MESSAGE", "trainer: GPU access lost"),
        ("PRIORITY", "4"),
        ("SYSLOG_IDENTIFIER", "gpuguard"),
        ("MESSAGE_ID", KINDS.lost.message_id),
        ("GPUGUARD_KIND", "lost"),
        ("GPUGUARD_SCOPE", "docker-3f2a.scope"),
        ("GPUGUARD_CONTAINER", "3f2a"),
        ("GPUGUARD_STATE", "lost"),
        ("GPUGUARD_DEVICES", "/dev/nvidia0"),
        ("GPUGUARD_DEVICES", "c 195:255 rw"),
        ("GPUGUARD_CAUSE", "reload"),
        ("GPUGUARD_WRITER", "systemd"),
        ("GPUGUARD_WRITER_PID", "1"),
        ("GPUGUARD_OUTAGE_USEC", "3000"),
        ("GPUGUARD_INCIDENT", "20261130-1"),
    ]


def test_who_wrote_and_for_whom_are_fields_of_their_own() -> None:
    """The program, its unit, the chain of requesters, and one GPUGUARD_PROPERTY for each property."""
    event = {
        "event": "x",
        "writer_exe": "/usr/bin/bash",
        "writer_unit": "session-3.scope",
        "requester": "systemctl daemon-reload ← apt-get",
        "property": ("CPUQuotaPerSecUSec", "MemoryMax"),
    }
    ((fields,), _) = journal_entry(None, "info", event)
    assert [(name.upper(), text) for name, text in fields[3:]] == [
        ("GPUGUARD_WRITER_EXE", "/usr/bin/bash"),
        ("GPUGUARD_WRITER_UNIT", "session-3.scope"),
        ("GPUGUARD_REQUESTER", "systemctl daemon-reload ← apt-get"),
        ("GPUGUARD_PROPERTY", "CPUQuotaPerSecUSec"),
        ("GPUGUARD_PROPERTY", "MemoryMax"),
    ]


def test_a_traceback_belongs_to_the_message() -> None:
    """The message is all that journalctl shows unasked: a traceback must be in it."""
    ((fields,), _) = journal_entry(None, "error", {"event": "failed", "exception": "Traceback:\n  x"})
    assert fields[:2] == [("MESSAGE", "failed\nTraceback:\n  x"), ("PRIORITY", "3")]


def test_json_line(lost: dict[str, Any]) -> None:
    """One object on one line, with the time in UTC, the level and the id; enumerations and rules as their text."""
    before = datetime.now(timezone.utc)
    line = json_line(None, "warning", lost)
    assert "\n" not in line
    read = json.loads(line)
    assert before <= datetime.fromisoformat(read.pop("timestamp")) <= datetime.now(timezone.utc)
    assert list(read)[:2] == ["level", "event"]
    assert read["level"] == "warning"
    assert read["message_id"] == KINDS.lost.message_id
    assert read["state"] == "lost"
    assert read["devices"] == ["/dev/nvidia0", "c 195:255 rw"]


def test_json_of_text_that_is_not_utf_8() -> None:
    """A lone surrogate does not keep a line from being written."""
    json_line(None, "info", {"event": "bad \udc80"}).encode()


def test_console_line(lost: dict[str, Any]) -> None:
    """People get time, level and message; the fields only where no sentence of a kind names them."""
    line = ConsoleLine(colour=False)
    assert re.fullmatch(r"\d\d:\d\d:\d\d warning  trainer: GPU access lost", line(None, "warning", lost))
    assert line(None, "info", {"event": "polled", "scopes": 3})[9:] == "info     polled scopes=3"


def test_console_colour() -> None:
    """With colour, a warning is yellow and an ordinary line plain."""
    line = ConsoleLine(colour=True)
    assert line(None, "warning", {"event": "x"}).startswith("\x1b[33m")
    assert "\x1b" not in line(None, "info", {"event": "x"})


def test_console_is_safe_from_what_it_shows() -> None:
    """Neither message, field nor traceback can bring control sequences to the terminal; a traceback keeps its lines."""
    hostile = "\x1b]0;owned\x07\nfake line"
    shown = ConsoleLine(colour=False)(None, "error", {"event": hostile, "a": hostile, "exception": hostile})
    assert shown.count("\n") == 2
    assert all(line.isprintable() for line in shown.split("\n"))
