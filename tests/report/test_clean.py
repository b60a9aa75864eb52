"""Values from outside that become labels."""

from __future__ import annotations

from gpuguard.report.clean import Capped


def test_capped() -> None:
    """Beyond the cap a new value is "other"; those known before keep their names."""
    capped = Capped(2)
    assert [capped(text) for text in ("runc", "systemd", "bash", "runc", "zsh")] == [
        "runc",
        "systemd",
        "other",
        "runc",
        "other",
    ]


def test_capped_without_a_value() -> None:
    """No value, and an empty one, are "unknown"."""
    capped = Capped(2)
    assert capped(None) == capped("") == "unknown"
