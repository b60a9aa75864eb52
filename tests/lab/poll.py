"""Waiting for something outside, with a deadline."""

from __future__ import annotations

import time
from typing import Callable

from tests.lab.errors import LabError


def until(happened: Callable[[], object], timeout: float, what: str) -> None:
    """Return once `happened()` is true. Raises LabError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not happened():
        if time.monotonic() > deadline:
            raise LabError(f"waited {timeout:g} s for {what}, in vain")
        time.sleep(0.02)
