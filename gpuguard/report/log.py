"""Where log entries go and what they look like there: structlog, set up for the journal, JSON or a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any, Optional, TextIO

import structlog
from structlog.typing import FilteringBoundLogger

from gpuguard.report.journal import Journal
from gpuguard.report.render import ConsoleLine, journal_entry, json_line

_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
_JOURNAL = Journal()


def configure(output: str, level: str, stream: Optional[TextIO] = None, journal: Journal = _JOURNAL) -> None:
    """Send structlog's entries of `level` and above to "journal", "json", "console", or "auto": see automatic.

    May be called again, for the whole process. JSON and console lines go to `stream`, else to standard error.
    """
    stream = stream or sys.stderr
    if output == "auto":
        output = automatic(stream)
    write: Callable[[Any], None] = _Lines(stream).write
    render: structlog.typing.Processor = json_line
    if output == "journal":
        write, render = journal.send, journal_entry
    elif output == "console":
        render = ConsoleLine(colour=stream.isatty() and not os.environ.get("NO_COLOR"))
    structlog.configure(
        processors=[structlog.processors.format_exc_info, render],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=lambda *_: _Output(write),
        # A cached logger would keep the level it began with.
        cache_logger_on_first_use=False,
    )


def silent() -> FilteringBoundLogger:
    """Return a logger that tells nobody: no kind of event is critical."""
    log: FilteringBoundLogger = structlog.wrap_logger(
        structlog.PrintLogger(), processors=[], wrapper_class=structlog.make_filtering_bound_logger(_LEVELS["critical"])
    )
    return log


def automatic(stream: TextIO) -> str:
    """Return "journal" when systemd connected the stream to it, "console" for a terminal, else "json"."""
    try:
        file = os.fstat(stream.fileno())
    except OSError:
        # Not a file of the system at all.
        return "json"
    # systemd.exec(5), $JOURNAL_STREAM: device and inode, to be compared, since a child inherits the variable.
    if os.environ.get("JOURNAL_STREAM") == f"{file.st_dev}:{file.st_ino}":
        return "journal"
    return "console" if stream.isatty() else "json"


class _Output:
    """What structlog calls by the name of the level. The rendered entry has its level in it."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = write


class _Lines:
    """Lines to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, line: str) -> None:
        try:
            self._stream.write(line + "\n")
            self._stream.flush()
        except OSError:
            # The terminal has gone, or the disk is full: no reason to stop guarding, and nowhere left to tell it.
            return
