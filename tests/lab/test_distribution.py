"""Other distributions: what cannot be built is said in words that help."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.lab import distribution
from tests.lab.distribution import DISTRIBUTIONS, root
from tests.lab.errors import LabError
from tests.lab.mirror import mirror


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(distribution, "CACHE", tmp_path)


def test_unknown_distribution_is_refused_with_the_known_ones() -> None:
    """A release that the lab does not know is refused, and the message names those it does."""
    with pytest.raises(LabError, match="no distribution 'buster'; there are bullseye, bookworm, trixie"):
        root("buster")


def test_ordinary_user_is_told_to_be_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without root nothing is built, and the reason says so."""
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    with pytest.raises(LabError, match=r"cannot build trixie: .* needs root"):
        root("trixie")


def test_machine_without_debootstrap_is_told_its_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that lacks debootstrap or Debian's keys is told which package to install."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("tests.lab.machine.shutil.which", lambda *_, **__: None)
    with pytest.raises(LabError, match=r"apt-get install (debootstrap|debian-archive-keyring)"):
        root("trixie")


@pytest.mark.skipif(
    shutil.which("apt-get") is None, reason="not a Debian or Ubuntu: there is no apt to ask for a mirror"
)
def test_mirror_that_lacks_the_release_is_named() -> None:
    """A release that no mirror has is an error that names the mirrors."""
    with pytest.raises(LabError, match=r"none of apt's sources has Debian's nosuch: |no sources"):
        mirror("nosuch")


def test_another_recipe_has_another_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that was built from other packages is not taken for this one."""
    before = DISTRIBUTIONS["trixie"].place
    monkeypatch.setattr(distribution, "_PACKAGES", (*distribution._PACKAGES, "curl"))
    assert DISTRIBUTIONS["trixie"].place != before
    assert before.name.startswith("trixie-")
