"""Unit files of the fake systemd."""

from __future__ import annotations

from pathlib import Path

from tests.lab.sim.unitfile import TRANSIENT, assignments, drop_in_directories, drop_in_text, find_drop_ins

UNIT = "docker-ab-c.scope"


def drop_in(root: Path, place: str, name: str) -> str:
    """Write an empty drop-in and return its path."""
    path = root / place / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def test_drop_ins_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Drop-ins of the unit, of its prefixes and of all scopes are read by file name, whatever their directory."""
    paths = [
        drop_in(tmp_path, "etc/systemd/system", "docker-.scope.d/10-a.conf"),
        drop_in(tmp_path, TRANSIENT, f"{UNIT}.d/50-b.conf"),
        drop_in(tmp_path, "etc/systemd/system", "docker-ab-.scope.d/60-c.conf"),
        drop_in(tmp_path, "usr/lib/systemd/system", "scope.d/70-d.conf"),
    ]
    drop_in(tmp_path, "etc/systemd/system", "podman-.scope.d/10-a.conf")
    assert find_drop_ins(tmp_path, UNIT, drop_in_directories(tmp_path)) == paths


def test_of_one_name_the_first_directory_wins(tmp_path: Path) -> None:
    """A drop-in that systemd wrote hides one of the same name in /etc."""
    wins = drop_in(tmp_path, TRANSIENT, f"{UNIT}.d/50-x.conf")
    drop_in(tmp_path, "etc/systemd/system", "docker-.scope.d/50-x.conf")
    assert find_drop_ins(tmp_path, UNIT, drop_in_directories(tmp_path)) == [wins]


def test_a_directory_made_since_the_reload_is_not_seen(tmp_path: Path) -> None:
    """Only directories that were there at the last reload are looked into."""
    known = drop_in_directories(tmp_path)
    drop_in(tmp_path, "etc/systemd/system", "docker-.scope.d/50-x.conf")
    assert find_drop_ins(tmp_path, UNIT, known) == []


def test_what_is_written_can_be_read() -> None:
    """A drop-in has its section's head and the lines, and comments are passed over."""
    text = drop_in_text([("Scope", "DeviceAllow="), ("Scope", "DeviceAllow=/dev/null rwm")])
    assert text.count("[Scope]") == 1
    assert list(assignments(text)) == [("DeviceAllow", ""), ("DeviceAllow", "/dev/null rwm")]
