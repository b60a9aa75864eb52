"""What `gpuguard release` tells."""

from __future__ import annotations

from gpuguard.cli.release import people
from gpuguard.model.reports import ReleaseReport


def test_a_release_says_what_it_does_not_do() -> None:
    """Who takes a device away learns that the container still has it, and that systemd will allow it again."""
    text = people(ReleaseReport("a.scope", "a", ("c 195:0 rw",), ("c 195:0 rw",), ("c 195:0 rw",)))
    forgotten, effective, declared = text.splitlines()
    assert forgotten == "a.scope: gpuguard no longer gives back c 195:0 rw"
    assert "may still use c 195:0 rw" in effective
    assert "systemd still has c 195:0 rw" in declared


def test_a_release_after_the_device_is_gone_is_one_line() -> None:
    """Nothing is said of what is not so."""
    assert people(ReleaseReport("a.scope", "a", ("c 195:0 rw",))).count("\n") == 0
