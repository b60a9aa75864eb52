"""The set-up of structlog: where entries go, which, and what happens when the way is blocked."""

from __future__ import annotations

import io
import json
import os
import pty
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from gpuguard.report.journal import Journal
from gpuguard.report.kinds import KINDS, emit
from gpuguard.report.log import automatic, configure
from tests.report.journald import Listener, journald


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Leave structlog as it was."""
    yield
    structlog.reset_defaults()


@pytest.fixture
def terminal() -> Iterator[io.TextIOWrapper]:
    """Yield a stream that is a terminal."""
    master, slave = pty.openpty()
    with open(slave, "w") as stream:  # noqa: PTH123 - a descriptor is no path
        yield stream
    os.close(master)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[io.TextIOWrapper]:
    """Yield a stream that is a file."""
    with (tmp_path / "log").open("w+") as stream:
        yield stream


def test_journal_when_systemd_says_so(file: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    """JOURNAL_STREAM names the device and inode of the stream that systemd connected."""
    there = os.fstat(file.fileno())
    monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
    assert automatic(file) == "journal"


@pytest.mark.parametrize("value", [None, "", "1:2", "nonsense"])
def test_json_when_redirected(file: io.TextIOWrapper, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable that was inherited, while the stream is another one, does not count."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    if value is not None:
        monkeypatch.setenv("JOURNAL_STREAM", value)
    assert automatic(file) == "json"


def test_console_on_a_terminal(terminal: io.TextIOWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person at a terminal reads lines."""
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)
    assert automatic(terminal) == "console"


def test_a_stream_without_a_file() -> None:
    """A stream in memory gets JSON."""
    assert automatic(io.StringIO()) == "json"


def test_level_and_a_second_configuration() -> None:
    """Entries below the level are left out; configured again, also loggers that exist follow."""
    stream = io.StringIO()
    log = structlog.get_logger()
    configure("json", "warning", stream)
    log.info("quiet")
    log.warning("loud")
    configure("json", "debug", stream)
    log.debug("fine")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud", "fine"]


def test_percent_signs_are_text() -> None:
    """A message is no format."""
    stream = io.StringIO()
    configure("json", "info", stream)
    structlog.get_logger().info("100 %s")
    assert json.loads(stream.getvalue())["event"] == "100 %s"


@pytest.mark.parametrize(("no_color", "start"), [("", "\x1b["), ("1", "")])
def test_colour(terminal: io.TextIOWrapper, no_color: str, start: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colour only on a terminal, and not with NO_COLOR."""
    monkeypatch.setenv("NO_COLOR", no_color)
    written: list[str] = []
    monkeypatch.setattr(terminal, "write", written.append)
    configure("console", "info", terminal)
    structlog.get_logger().error("x")
    assert written[0].startswith(start)
    assert ("\x1b" in written[0]) == bool(start)


def test_no_colour_in_a_file(file: io.TextIOWrapper) -> None:
    """A console line that goes to a file has no control sequences."""
    configure("console", "info", file)
    structlog.get_logger().error("x")
    file.seek(0)
    assert "\x1b" not in file.read()


def test_a_broken_stream_stops_nobody() -> None:
    """A full disk, or a terminal that has gone, costs the line and nothing else."""
    with Path("/dev/full").open("w") as full:
        configure("json", "info", full)
        structlog.get_logger().info("x")
        with pytest.raises(OSError, match="No space"):
            full.close()


def test_journal(tmp_path: Path) -> None:
    """An event of a kind arrives at journald's socket, a traceback as part of its message."""
    listener, journal = Listener(tmp_path / "socket"), Journal(str(tmp_path / "socket"))
    configure("journal", "info", journal=journal)
    log = structlog.get_logger()
    emit(log, KINDS.source_down, source="bus", reason="closed")
    fields = dict(listener.fields())
    assert fields["MESSAGE_ID"] == KINDS.source_down.message_id
    assert fields["PRIORITY"] == "4"
    assert fields["GPUGUARD_SOURCE"] == "bus"
    try:
        int("x")
    except ValueError:
        log.exception("look")
    message = dict(listener.fields())["MESSAGE"]
    assert message.startswith("look\nTraceback")
    assert message.endswith("ValueError: invalid literal for int() with base 10: 'x'")
    journal.close()
    listener.close()


def test_real_journald() -> None:
    """The whole way into the real journal, found by each of the contract's fields."""
    with journald() as server:
        journal = Journal(server.socket)
        configure("journal", "info", journal=journal)
        emit(
            structlog.get_logger(),
            KINDS.repaired,
            scope="docker-3f2a.scope",
            container="3f2a",
            runtime="docker",
            name="trainer",
            devices=("/dev/nvidia0", "/dev/nvidiactl"),
            writer="systemd",
            writer_pid=1,
            cause="reload",
            outage_usec=3000,
        )
        journal.close()
        entry = server.wait_for(f"MESSAGE_ID={KINDS.repaired.message_id}", "GPUGUARD_DEVICES=/dev/nvidiactl")
    assert entry["MESSAGE"] == (
        "trainer (docker 3f2a): GPU access restored after 3.0 ms: "
        "/dev/nvidia0, /dev/nvidiactl had been taken away by systemd (daemon-reload)"
    )
    assert entry["SYSLOG_IDENTIFIER"] == "gpuguard"
    assert entry["GPUGUARD_WRITER_PID"] == "1"
    assert entry["GPUGUARD_OUTAGE_USEC"] == "3000"
