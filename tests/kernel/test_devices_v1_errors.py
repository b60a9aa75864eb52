"""What the reader and writer of device lists make of things that no kernel should show them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.kernel.devices_v1 import SHIELD, DevicesV1
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.kernel.groups import Groups

RULE = Rule.parse("c 195:0 rw")


def put(tree: Groups, file: str, data: bytes) -> None:
    """Write a file of the scope."""
    (tree.path(tree.scope) / file).write_bytes(data)


class TestRead:
    """Reading what is no device list."""

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize(
        "data",
        [b"c 1:3 rwm\nnonsense\n", b"a *:* r\n", b"c 1:3 rwm\x00\n", b"\xff\xfe\n", "c 1:٣ rwm\n".encode(), b"c 1:3\n"],
    )
    def test_a_text_that_makes_no_sense(self, tree: Groups, data: bytes) -> None:
        """A list with one odd line, or one that is not ASCII, is unreadable; never a shorter list."""
        put(tree, "devices.list", data)
        with pytest.raises(CgroupUnreadableError, match=r"docker-.*\.scope: devices\.list makes no sense"):
            tree.devices.read(tree.scope)

    def test_an_inode_needs_no_list(self, tree: Groups) -> None:
        """Which group it is can be told although its list cannot be read."""
        put(tree, "devices.list", b"nonsense\n")
        assert tree.devices.inode(tree.scope) == tree.inode(tree.scope)

    def test_a_group_without_a_list(self, tree: Groups) -> None:
        """A directory without devices.list is one that is being removed."""
        (tree.path(tree.scope) / "devices.list").unlink()
        with pytest.raises(CgroupGoneError):
            tree.devices.read(tree.scope)

    def test_a_list_that_is_a_link(self, tree: Groups, tmp_path: Path) -> None:
        """A link in the place of devices.list is not followed."""
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text("c 195:0 rw\n")
        (tree.path(tree.scope) / "devices.list").unlink()
        (tree.path(tree.scope) / "devices.list").symlink_to(elsewhere)
        with pytest.raises(
            CgroupUnreadableError, match=r"cannot read devices\.list: Too many levels of symbolic links"
        ):
            tree.devices.read(tree.scope)

    def test_a_list_that_is_a_directory(self, tree: Groups) -> None:
        """A directory in the place of devices.list is unreadable."""
        (tree.path(tree.scope) / "devices.list").unlink()
        (tree.path(tree.scope) / "devices.list").mkdir()
        with pytest.raises(CgroupUnreadableError, match="Is a directory"):
            tree.devices.read(tree.scope)

    def test_a_list_that_nobody_writes(self, tree: Groups) -> None:
        """A FIFO in the place of devices.list does not make the reader wait."""
        (tree.path(tree.scope) / "devices.list").unlink()
        os.mkfifo(tree.path(tree.scope) / "devices.list")
        assert tree.devices.read(tree.scope).rules == RuleSet()

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_list_that_may_not_be_read(self, tree: Groups) -> None:
        """A list without permission is unreadable, and the error says so."""
        (tree.path(tree.scope) / "devices.list").chmod(0)
        with pytest.raises(CgroupUnreadableError, match="Permission denied"):
            tree.devices.read(tree.scope)


class TestPaths:
    """Names that are no control group's."""

    @pytest.mark.invariant(6)
    @pytest.mark.parametrize(
        "name",
        [
            "/system.slice/../x.scope",
            "/..",
            "system.slice/x.scope",
            "",
            "//system.slice/x.scope",
            "/system.slice/x\0.scope",
        ],
    )
    def test_are_refused(self, tree: Groups, name: str) -> None:
        """A path with dots, a NUL or no root is refused for reading and writing alike."""
        for act in (
            lambda: tree.devices.read(name),
            lambda: tree.devices.allow(name, 1, RULE),
            lambda: tree.devices.shield(name, 1),
            lambda: tree.devices.unshield(name, 1),
            lambda: tree.devices.shielded(name),
        ):
            with pytest.raises(CgroupUnreadableError):
                act()

    @pytest.mark.invariant(6)
    def test_a_link_is_not_followed(self, tree: Groups, tmp_path: Path) -> None:
        """A link in the place of a scope is nobody's scope."""
        link = tmp_path / "system.slice" / "link.scope"
        link.symlink_to(tree.path(tree.scope))
        with pytest.raises(CgroupGoneError):
            tree.devices.allow("/system.slice/link.scope", tree.inode(tree.scope), RULE)
        assert (tree.path(tree.scope) / "devices.allow").read_text() == ""

    def test_a_link_is_no_unit(self, tree: Groups, tmp_path: Path) -> None:
        """Links are not listed, neither as units nor as slices to look into."""
        (tmp_path / "system.slice" / "link.scope").symlink_to(tree.path(tree.scope))
        (tmp_path / "link.slice").symlink_to(tmp_path / "system.slice")
        assert list(tree.devices.units(lambda _: True)) == [(tree.scope, tree.inode(tree.scope))]


class TestWrite:
    """Writing what does not take it."""

    def test_is_refused_by_a_missing_file(self, tree: Groups) -> None:
        """A group without devices.allow is one that is being removed."""
        (tree.path(tree.scope) / "devices.allow").unlink()
        with pytest.raises(CgroupGoneError, match="cannot allow 'c 195:0 rw'"):
            tree.devices.allow(tree.scope, tree.inode(tree.scope), RULE)

    def test_is_refused_by_a_link(self, tree: Groups, tmp_path: Path) -> None:
        """A link in the place of devices.allow is not followed."""
        victim = tmp_path / "victim"
        victim.write_text("")
        (tree.path(tree.scope) / "devices.allow").unlink()
        (tree.path(tree.scope) / "devices.allow").symlink_to(victim)
        with pytest.raises(CgroupUnreadableError, match="cannot allow 'c 195:0 rw': Too many levels"):
            tree.devices.allow(tree.scope, tree.inode(tree.scope), RULE)
        assert victim.read_text() == ""

    def test_is_refused_by_a_fifo_without_a_reader(self, tree: Groups) -> None:
        """A FIFO that nobody reads does not make the writer wait."""
        (tree.path(tree.scope) / "devices.allow").unlink()
        os.mkfifo(tree.path(tree.scope) / "devices.allow")
        with pytest.raises(CgroupUnreadableError, match="No such device or address"):
            tree.devices.allow(tree.scope, tree.inode(tree.scope), RULE)

    def test_the_shield_meets_a_file(self, tree: Groups) -> None:
        """A file in the shield's place is no shield, and is not removed."""
        put(tree, SHIELD, b"")
        tree.devices.shield(tree.scope, tree.inode(tree.scope))
        assert not tree.devices.shielded(tree.scope)
        with pytest.raises(CgroupGoneError):
            tree.devices.unshield(tree.scope, tree.inode(tree.scope))
        assert (tree.path(tree.scope) / SHIELD).exists()

    def test_the_shield_has_something_in_it(self, tree: Groups) -> None:
        """A shield that is not empty stays, and the error says why."""
        (tree.path(tree.scope) / SHIELD / "child").mkdir(parents=True)
        with pytest.raises(CgroupUnreadableError, match="cannot remove the shield: Directory not empty"):
            tree.devices.unshield(tree.scope, tree.inode(tree.scope))


class TestUnits:
    """Listing a hierarchy that is not whole."""

    def test_a_hierarchy_that_is_not_there(self, tmp_path: Path) -> None:
        """No hierarchy has no units."""
        assert list(DevicesV1(tmp_path / "none").units(lambda _: True)) == []

    @pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
    def test_a_slice_that_may_not_be_listed(self, tree: Groups) -> None:
        """A slice that cannot be listed is an error, not an empty slice."""
        tree.path(tree.slice).chmod(0)
        try:
            with pytest.raises(CgroupUnreadableError, match=r"/system\.slice: cannot list"):
                list(tree.devices.units(lambda _: True))
        finally:
            tree.path(tree.slice).chmod(0o700)
