"""A log that keeps what it is told."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog
from structlog.testing import LogCapture
from structlog.typing import FilteringBoundLogger

Entry = MutableMapping[str, Any]


def capturing_log() -> tuple[FilteringBoundLogger, list[Entry]]:
    """Return a logger, and the list of entries that grows with what it is told."""
    capture = LogCapture()
    log: FilteringBoundLogger = structlog.wrap_logger(
        None, processors=[capture], wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG)
    )
    return log, capture.entries
