"""A scope's device list, held open. Needs root."""

from __future__ import annotations

import pytest

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.kernel.device_files import OpenHierarchy
from gpuguard.model.ruleset import RuleSet
from tests.kernel.groups import Groups

GPU0, NULL = "c 195:0 rw", "c 1:3 rwm"


def test_read_and_written(kernel: Groups) -> None:
    """Each look is at the list as it is now, each write adds one rule."""
    files = OpenHierarchy(kernel.root).files(kernel.scope, kernel.make(kernel.scope, NULL))
    assert files.read() == b"c 1:3 rwm\n"
    assert files.write([GPU0.encode(), b"c 195:1 r"]) == ""
    assert RuleSet.parse(files.read().decode()) == RuleSet.of(NULL, GPU0, "c 195:1 r")
    kernel.deny(kernel.scope, "a")
    assert files.read() == b""
    files.close()


def test_a_rule_that_is_refused(kernel: Groups) -> None:
    """It is told, and those after it are written all the same."""
    kernel.make(kernel.slice, NULL)
    files = OpenHierarchy(kernel.root).files(kernel.scope, kernel.make(kernel.scope))
    assert "cannot allow 'c 195:0 rw'" in files.write([GPU0.encode(), NULL.encode()])
    assert files.read() == b"c 1:3 rwm\n"
    files.close()


def test_a_long_list(kernel: Groups) -> None:
    """Longer than a page; one that is too long is no list without its end."""
    files = OpenHierarchy(kernel.root).files(kernel.scope, kernel.make(kernel.scope))
    files.write(b"c 240:%d rwm" % minor for minor in range(600))
    assert len(files.read().splitlines()) == 600
    files.write(b"c 240:%d rwm" % minor for minor in range(600, 5000))
    with pytest.raises(CgroupUnreadableError, match="too long"):
        files.read()
    files.close()


def test_a_group_that_is_gone(kernel: Groups) -> None:
    """It is neither empty nor unreadable."""
    files = OpenHierarchy(kernel.root).files(kernel.scope, kernel.make(kernel.scope))
    kernel.path(kernel.scope).rmdir()
    with pytest.raises(CgroupGoneError):
        files.read()
    with pytest.raises(CgroupGoneError):
        files.write([NULL.encode()])
    files.close()
    with pytest.raises(CgroupGoneError):
        OpenHierarchy(kernel.root).files(kernel.scope, 1)


@pytest.mark.invariant(6)
def test_what_is_no_unit_of_that_inode(kernel: Groups) -> None:
    """A slice is never opened for writing, nor another group of that name."""
    hierarchy = OpenHierarchy(kernel.root)
    inode = kernel.make(kernel.scope)
    with pytest.raises(CgroupUnreadableError, match="not a scope"):
        hierarchy.files(kernel.slice, kernel.inode(kernel.slice))
    with pytest.raises(CgroupGoneError, match="taken this name"):
        hierarchy.files(kernel.scope, inode + 1)


def test_files_that_are_not_there(tree: Groups) -> None:
    """Then none is left open."""
    with pytest.raises(CgroupGoneError, match="cannot open its device list"):
        OpenHierarchy(tree.root).files(tree.scope, tree.inode(tree.scope))
