"""Texts of /proc/PID/cgroup."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguard.model.membership import Membership, memberships


def test_each_hierarchy() -> None:
    """Of cgroup v1 with its controllers, named ones, and the unified one, which has none."""
    text = "12:cpu,cpuacct:/a\n1:name=systemd:/system.slice/x.service\n0::/\n"
    assert list(memberships(text)) == [
        Membership(("cpu", "cpuacct"), "/a"),
        Membership(("name=systemd",), "/system.slice/x.service"),
        Membership((), "/"),
    ]


@pytest.mark.parametrize("name", ["/a:b:c", "/a\f1:devices:/b", "/a\r1:devices:/b", "/a\u20281:devices:/b", "/ "])
def test_a_name_is_one(name: str) -> None:
    """Whoever may make groups may give them names with anything but a slash and the end of a line."""
    assert list(memberships(f"8:devices:{name}\n")) == [Membership(("devices",), name)]


@pytest.mark.parametrize("text", ["", "\n", "x", "0:", "8:devices"])
def test_what_is_none(text: str) -> None:
    """A text that was cut off says nothing."""
    assert list(memberships(text)) == []


def test_ones_own() -> None:
    """This process is in a group of each hierarchy."""
    found = list(memberships(Path("/proc/self/cgroup").read_text(encoding="utf-8")))
    assert found
    assert all(one.control_group.startswith("/") for one in found)
