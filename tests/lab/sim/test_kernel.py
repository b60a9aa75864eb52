"""The pure rules of a device cgroup, held against a real kernel where there is one."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.node import Node
from tests.lab.sim.kernel import ALLOW, DENY, DeviceGroup

TEXTS = ["a", "a *:* rwm", "x", "c 1:3", "c 1:3 q", "c 1:3 rwm\n"]
RULES = [
    f"{kind} {device} {access}"
    for kind in "cb"
    for device in ("1:3", "1:*", "*:*", "*:3", "195:0")
    for access in ("r", "w", "m", "rw", "rwm")
]


def write(group: DeviceGroup, verb: str, text: str, *, has_children: bool = False) -> int:
    """Write to a group; return 0 or the error number."""
    try:
        group.write(verb, text, has_children=has_children)
    except OSError as error:
        return error.errno or -1
    return 0


def denied(*rules: str) -> DeviceGroup:
    """Return a top group that allows only these rules."""
    group = DeviceGroup()
    write(group, DENY, "a")
    for rule in rules:
        write(group, ALLOW, rule)
    return group


def test_a_new_group_has_its_parents_list() -> None:
    """A child starts with what its parent allows at that time."""
    assert DeviceGroup(denied("c 1:3 rw")).list_text() == "c 1:3 rw\n"


def test_a_group_without_filter_hides_its_exceptions() -> None:
    """A group that allows by default shows one line, also when a device was denied."""
    group = DeviceGroup()
    write(group, DENY, "c 195:0 rw")
    assert group.list_text() == "a *:* rwm\n"


def test_same_devices_merge() -> None:
    """Access to one device is collected in one entry, at its first place."""
    assert denied("c 1:3 r", "c 1:5 r", "c 1:3 w").list_text() == "c 1:3 rw\nc 1:5 r\n"


def test_deny_removes_access_bits() -> None:
    """A deny takes away the named access; an entry without access is gone."""
    group = denied("c 1:3 rwm", "c 1:5 r")
    write(group, DENY, "c 1:3 w")
    write(group, DENY, "c 1:5 rwm")
    assert group.list_text() == "c 1:3 rm\n"


@pytest.mark.parametrize("verb", [ALLOW, DENY])
def test_all_is_refused_above_a_child(verb: str) -> None:
    """With a child neither allow-all nor deny-all is possible, and nothing changes."""
    group = denied("c 1:3 r")
    assert write(group, verb, "a", has_children=True) == errno.EINVAL
    assert group.list_text() == "c 1:3 r\n"


def test_a_child_gets_no_more_than_its_parent() -> None:
    """One entry of the parent must hold all that a child is to get."""
    child = DeviceGroup(denied("c 195:* m", "c 195:0 r"))
    assert write(child, ALLOW, "c 195:0 rm") == errno.EPERM


def test_a_deny_reaches_the_descendants() -> None:
    """What a parent loses, its children lose; a later allow does not bring it back to them."""
    parent = denied("c 195:0 rw")
    child = DeviceGroup(parent)
    write(parent, DENY, "c 195:0 rw", has_children=True)
    write(parent, ALLOW, "c 195:0 rw", has_children=True)
    assert (parent.list_text(), child.list_text()) == ("c 195:0 rw\n", "")


@pytest.fixture
def place(node_v1: Node) -> Iterator[Path]:
    """Return a place of a real kernel for three nested device cgroups, which are removed afterwards."""
    top = node_v1.path("/sys/fs/cgroup/devices/rules")
    yield top
    for directory in filter(Path.exists, (top / "a" / "b", top / "a", top)):
        directory.rmdir()


@pytest.mark.parametrize("restricted", [0, 1, 2, 3])
@pytest.mark.parametrize("seed", range(3))
def test_it_does_what_the_kernel_does(seed: int, restricted: int, place: Path) -> None:
    """After each of many random writes to three nested groups, lists and errors are those of the kernel."""
    real = [place, place / "a", place / "a" / "b"]
    fake = [DeviceGroup()]
    chance = random.Random(seed)  # noqa: S311  # a test's dice
    script: list[tuple[int, str, str]] = []

    def both(number: int, verb: str, text: str) -> None:
        script.append((number, verb, text))
        error = 0
        try:
            (real[number] / f"devices.{verb}").write_bytes(text.encode())
        except OSError as refusal:
            error = refusal.errno or -1
        has_children = len(fake) > number + 2
        assert write(fake[number + 1], verb, text, has_children=has_children) == error, script[-5:]
        lists = [(directory / "devices.list").read_text() for directory in real[: len(fake) - 1]]
        assert [group.list_text() for group in fake[1:]] == lists, script[-5:]

    for number, directory in enumerate(real):
        directory.mkdir()
        fake.append(DeviceGroup(fake[-1]))
        if number >= restricted:
            both(number, DENY, "a")
            for rule in chance.sample(RULES, 10):
                both(number, ALLOW, rule)
    for _ in range(150):
        both(chance.randrange(3), chance.choice([ALLOW, DENY]), chance.choice(TEXTS + RULES))
