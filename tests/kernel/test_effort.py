"""What may be spent on following a container's programs."""

from __future__ import annotations

import contextlib
import time

import pytest

from gpuguard.errors import CgroupUnreadableError
from gpuguard.kernel import effort
from gpuguard.kernel.effort import Effort

pytestmark = pytest.mark.invariant(10)


def spin(seconds: float) -> None:
    """Take CPU time."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_what_takes_little_is_never_refused() -> None:
    """Any number of looks, one after another."""
    spent = Effort("/x.scope")
    for _ in range(100):
        spent.begin()
        with spent.spend():
            pass


def test_a_look_that_takes_long_is_broken_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been begun is ended, and nothing begun after it."""
    monkeypatch.setattr(effort, "_MOST", 0.002)
    spent = Effort("/x.scope")
    spent.begin()
    with spent.spend():
        spin(0.003)
    with pytest.raises(CgroupUnreadableError, match=r"/x\.scope: .*too long"), spent.spend():
        pass


def test_after_a_look_that_took_long_is_a_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a little is spent then; also where the look failed. Other control groups are none the worse."""
    monkeypatch.setattr(effort, "_LITTLE", 0.002)
    monkeypatch.setattr(effort, "_REST", 1e9)  # for as long as a busy machine takes
    spent, other = Effort("/x.scope"), Effort("/y.scope")
    spent.begin()
    with contextlib.suppress(ZeroDivisionError), spent.spend():
        spin(0.003)
        assert 1 / 0
    spent.begin()
    with pytest.raises(CgroupUnreadableError, match="too long"), spent.spend():
        pass
    other.begin()
    with other.spend():
        pass
    spent._rest_until = time.monotonic()
    spent.begin()
    with spent.spend():
        pass
