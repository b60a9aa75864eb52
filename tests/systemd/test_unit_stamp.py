"""Tests of gpuguard.systemd.unit_stamp."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguard.systemd.unit_stamp import UnitStamps

UNIT = f"docker-{'a' * 64}.scope"
OTHER = f"docker-{'b' * 64}.scope"
OWN = f"run/systemd/transient/{UNIT}.d"
FAMILY = "run/systemd/system/docker-.scope.d"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a root directory with a unit's own drop-in and one for all of its family."""
    for directory in (OWN, FAMILY, "etc/systemd/system"):
        (tmp_path / directory).mkdir(parents=True)
        (tmp_path / directory / "50-DeviceAllow.conf").touch()
    return tmp_path


def changed(root: Path, unit: str, change: str) -> bool:
    """Return whether the unit's stamp is another one after a path was made (a directory with "/") or removed."""
    stamps = UnitStamps(str(root))
    before = stamps.stamp(unit)
    path = root / change
    if path.exists():
        path.unlink()
    elif change.endswith("/"):
        path.mkdir(parents=True)
    else:
        path.touch()
    stamps.refresh()
    return stamps.stamp(unit) != before


@pytest.mark.parametrize(
    "change",
    [
        f"{OWN}/50-DeviceAllow.conf",
        f"{OWN}/99-more.conf",
        f"{FAMILY}/50-DeviceAllow.conf",
        "etc/systemd/system/docker-.scope.d/",
        "etc/systemd/system/scope.d/",
    ],
)
def test_a_file_that_comes_or_goes_changes_it(root: Path, change: str) -> None:
    """A drop-in made or removed, for the unit or its family, is seen; also the first one of a new directory."""
    assert changed(root, UNIT, change)


def test_another_container_does_not(root: Path) -> None:
    """The files that come with another container leave the stamp alone."""
    assert not changed(root, OTHER, f"{OWN}/99-more.conf")
    assert not changed(root, UNIT, f"run/systemd/transient/{OTHER}.d/")


def test_the_family_is_read_once_a_round(root: Path) -> None:
    """Within a round the directories that units share are not read again."""
    stamps = UnitStamps(str(root))
    before = stamps.stamp(UNIT)
    (root / FAMILY / "99-more.conf").touch()
    assert stamps.stamp(UNIT) == before
    stamps.refresh()
    assert stamps.stamp(UNIT) != before


def test_without_any_directory_there_is_a_stamp(tmp_path: Path) -> None:
    """Directories that are not there are a state, too."""
    assert not any(UnitStamps(str(tmp_path)).stamp(UNIT))
