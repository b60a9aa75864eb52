"""The device hierarchy as files and FIFOs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.sim.tree import Tree

GROUP = "/system.slice/docker-1.scope"


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    """Return a tree with one group, which has no rules."""
    made = Tree(tmp_path / "cgroup", tmp_path / "removed")
    made.make(GROUP)
    made.write(GROUP, "deny", "a", "systemd")
    made.publish(GROUP)
    yield made
    made.close()


def directory(tmp_path: Path) -> Path:
    """Return the group's directory."""
    return tmp_path / "cgroup/devices" / GROUP[1:]


def put(tmp_path: Path, verb: str, text: str) -> None:
    """Write to a FIFO as gpuguard does."""
    descriptor = os.open(directory(tmp_path) / f"devices.{verb}", os.O_WRONLY | os.O_NONBLOCK)
    os.write(descriptor, text.encode())
    os.close(descriptor)


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("c 195:0 rw", "c 195:0 rw\n"),
        ("c 195:0 rwc 195:1 rwmb 8:* r", "c 195:0 rw\nc 195:1 rwm\nb 8:* r\n"),
        ("c 195:0 rw\nc 195:0 m\n", "c 195:0 rwm\n"),
        ("c 195:0 rwac 195:1 r", "a *:* rwm\n"),
        ("c 195:0 rw\nnonsense\nc 195:1 r", "c 195:0 rw\nc 195:1 r\n"),
    ],
)
def test_texts_are_cut_into_rules(text: str, rules: str, tree: Tree, tmp_path: Path) -> None:
    """Writes that a FIFO has run together are carried out one by one, in order."""
    put(tmp_path, "allow", text)
    tree.drain()
    assert (directory(tmp_path) / "devices.list").read_text() == rules


def test_what_was_written_before_is_done_before(tree: Tree, tmp_path: Path) -> None:
    """A rule that waits in a FIFO when systemd denies everything is lost, as on a real node."""
    put(tmp_path, "allow", "c 195:0 rw")
    tree.write(GROUP, "deny", "a", "systemd")
    tree.publish(GROUP)
    assert (directory(tmp_path) / "devices.list").read_text() == ""


def test_refusals_are_kept(tree: Tree, tmp_path: Path) -> None:
    """What the kernel would have refused changes nothing and is in the log, with the reason."""
    (directory(tmp_path) / "child").mkdir()
    put(tmp_path, "allow", "a")
    put(tmp_path, "deny", "nonsense")
    tree.drain()
    refused = {(write.verb, write.text, write.error) for write in tree.writes if write.error}
    assert refused == {("allow", "a", "Invalid argument"), ("deny", "nonsense", "Invalid argument")}


def test_a_removed_group_keeps_its_number(tree: Tree, tmp_path: Path) -> None:
    """A group made under an old name has a new inode, and who holds the old one open finds no list in it."""
    old = os.open(directory(tmp_path), os.O_RDONLY)
    tree.remove(GROUP)
    tree.make(GROUP)
    try:
        assert not os.access("devices.list", os.F_OK, dir_fd=old)
        assert os.fstat(old).st_ino != directory(tmp_path).stat().st_ino
    finally:
        os.close(old)
