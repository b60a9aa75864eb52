"""One guard at a time: whoever holds the lock may write to scopes and to the ledger."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from gpuguard.errors import LedgerError

_RETRY = 0.05


@contextlib.contextmanager
def guard_lock(run: Path, patience: float) -> Iterator[None]:
    """Hold the lock of this node. Blocks up to `patience` seconds; raises LedgerError when another holds it longer."""
    path = run / "lock"
    try:
        run.mkdir(mode=0o755, parents=True, exist_ok=True)
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be opened: {error.strerror}; does this user own {run}?") from error
    try:
        _acquire(lock, path, time.monotonic() + patience)
        yield
    finally:
        os.close(lock)


def _acquire(lock: int, path: Path, deadline: float) -> None:
    while not _locked(lock):
        if time.monotonic() >= deadline:
            raise LedgerError(f"{path}: another gpuguard is at work on this node")
        time.sleep(_RETRY)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
