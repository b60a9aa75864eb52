"""One guard at a time."""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuguard.errors import LedgerError
from gpuguard.guard.lock import guard_lock


def held(run: Path, patience: float) -> bool:
    """Take the lock and let it go."""
    with guard_lock(run, patience):
        return True


def test_a_second_holder_is_refused(tmp_path: Path) -> None:
    """While somebody holds the lock another one gives up after its patience, and the error says why."""
    with guard_lock(tmp_path, 0.0):
        begin = time.monotonic()
        with pytest.raises(LedgerError, match="another gpuguard is at work on this node"):
            held(tmp_path, 0.2)
        assert time.monotonic() - begin >= 0.2
    assert held(tmp_path, 0.0)


def test_whoever_waits_gets_it(tmp_path: Path) -> None:
    """A lock that is let go in time is taken."""
    with ThreadPoolExecutor(1) as thread:
        with guard_lock(tmp_path, 0.0):
            waiting = thread.submit(held, tmp_path, 30.0)
            time.sleep(0.1)
            assert not waiting.done()
        assert waiting.result(30)


def test_a_holder_that_dies_lets_go(tmp_path: Path) -> None:
    """The lock of a process that was killed is free at once, though its file is still there."""
    program = (
        "import sys, time, pathlib; from gpuguard.guard.lock import guard_lock\n"
        "with guard_lock(pathlib.Path(sys.argv[1]), 0.0): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            with pytest.raises(LedgerError):
                held(tmp_path, 0.0)
        finally:
            holder.kill()
    assert held(tmp_path, 10.0)


def test_makes_its_directory(tmp_path: Path) -> None:
    """The run directory need not be there."""
    assert held(tmp_path / "run" / "gpuguard", 0.0)


def test_a_link_in_its_place_is_refused(tmp_path: Path) -> None:
    """A link in the lock's place is not followed."""
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LedgerError, match="cannot be opened: Too many levels of symbolic links; does this user own"):
        held(tmp_path, 0.0)
    assert not (tmp_path / "elsewhere").exists()
