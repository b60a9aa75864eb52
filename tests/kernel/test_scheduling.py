"""The scheduling class, tried in processes that end with it."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRY = """
import os, resource, signal, sys
sys.path.insert(0, {home!r})
from gpuguard.kernel import scheduling
{before}
standing = scheduling.hurry()
{after}
print(standing.scheduling, os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0), standing.reason, sep="|")
"""
DENIED = """
def denied(*_):
    raise PermissionError(1, "Operation not permitted")
os.sched_setscheduler = denied
"""


def tried(before: str = "", after: str = "") -> list[str]:
    """Return how a process runs that was in a hurry."""
    import gpuguard  # noqa: PLC0415

    home = str(gpuguard.__path__[0]).removesuffix("/gpuguard")
    text = TRY.format(home=home, before=before, after=after)
    return (
        subprocess.run([sys.executable, "-c", text], capture_output=True, check=True, text=True)
        .stdout.strip()
        .split("|")
    )


def test_the_best_there_is() -> None:
    """Real time where it may be had, else the first of all others; a reason for what is not the best."""
    kind, policy, nice, reason = tried()
    assert kind in {"rr", "nice", "normal"}
    assert (kind == "rr") == (int(policy) & 0xFF == 2)
    assert (kind == "rr") == (reason == "None")
    assert kind != "nice" or int(nice) < 0


def test_no_real_time() -> None:
    """As in a service on a kernel with RT_GROUP_SCHED."""
    kind, _, _, reason = tried(DENIED)
    assert kind in {"nice", "normal"}
    assert "Operation not permitted" in reason


def test_neither() -> None:
    """Who may not be quick says so, and goes on."""
    kind, _, nice, reason = tried(DENIED + "os.setpriority = denied\n")
    assert (kind, nice) == ("normal", "0")
    assert "no real-time class" in reason


def test_what_never_waits_is_made_to() -> None:
    """A loop in the real-time class is told so by a signal, and can give the class up."""
    loop = "import time\nif standing.scheduling == 'rr':\n"
    loop += "    def relent(*_):\n        global standing\n        standing = scheduling.relent('too busy')\n"
    loop += "    signal.signal(signal.SIGXCPU, relent)\n"
    loop += "    end = time.monotonic() + 20\n"
    loop += "    while standing.scheduling == 'rr' and time.monotonic() < end: pass\n"
    kind, _, _, reason = tried(after=loop)
    if "no real-time class" in reason:
        pytest.skip(reason)
    assert (kind, reason.partition(";")[0]) == ("nice", "too busy")
