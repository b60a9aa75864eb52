"""What a machine lacks is said in words that help."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lab.machine import PACKAGES, missing, why_not


def test_ordinary_user_is_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root there is no node, and the reason says so."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    assert "needs root" in (why_not("v1") or "")


def test_missing_program_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program that is not installed is named, and the package that brings it."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert missing("podman") == "podman is not installed (Debian and Ubuntu: apt-get install podman)"
    assert missing() is None


def test_every_package_is_in_the_list() -> None:
    """The list of packages to install is complete: it has every package that a missing program is put down to."""
    listed = Path(__file__).with_name("packages.txt").read_text(encoding="ascii").split()
    assert set(PACKAGES.values()) <= set(listed)
