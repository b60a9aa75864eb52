"""A write to a scope, or to the container's own group below it, as one to the container's list."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.errors import CgroupUnreadableError
from gpuguard.guard import payload
from gpuguard.guard.scope import Outage
from gpuguard.model.cause import Cause
from gpuguard.model.device_list import DeviceList, Payload
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Write
from tests.guard.made import GPU0, GPU1, GROUP, entitled, scope
from tests.guard.post import Post
from tests.lab.sim.node import SimNode
from tests.model.looks import rules

INNER = Payload(f"{GROUP}/container", 8)
OPEN = RuleSet(unrestricted=True)


@pytest.fixture
async def post(sim: SimNode) -> AsyncIterator[Post]:
    """Return a guard of which nothing runs, and that knows crun's container."""
    post = Post(sim)
    post.build()
    found = scope(known=entitled(GPU0, GPU1), effective=RuleSet.of("c *:* m", GPU0, GPU1))
    found.payload = INNER
    post.guard.scopes[GROUP] = found
    yield post
    await post.stop()


def now(monkeypatch: pytest.MonkeyPatch, post: Post, *lines: str) -> None:
    """Have the container's list be this from now on."""
    monkeypatch.setattr(post.guard.parts.devices, "read", lambda *_: DeviceList(7, RuleSet.of(*lines), payload=INNER))


@pytest.mark.parametrize(
    ("group", "inode", "found"),
    [
        (GROUP, 7, True),
        (GROUP, 9, False),
        (INNER.control_group, 8, True),
        (INNER.control_group, 9, False),
        (f"{GROUP}/other", 8, False),
        (f"{GROUP}/container/x", 8, False),
        ("/", 8, False),
    ],
)
async def test_whose_list_was_written(post: Post, group: str, inode: int, found: bool) -> None:
    """By name and inode."""
    known = post.guard.scopes[GROUP]
    assert (payload.scope_of(post.guard.scopes, Write(group, inode, 1.0, denied=True)) is known) == found


async def test_a_write_to_the_containers_group(post: Post) -> None:
    """It is the scope's by name, and as it is otherwise."""
    write = Write(
        INNER.control_group, 8, 1.0, denied=True, before=RuleSet.of(GPU0), after=RuleSet(), restored=rules(GPU0)
    )
    found = payload.of_the_container(post.guard.parts, post.guard.scopes[GROUP], write)
    assert found == replace(write, control_group=GROUP, inode=7)


async def test_a_write_to_an_ordinary_scope(post: Post) -> None:
    """It stays what it is."""
    known, write = post.guard.scopes[GROUP], Write(GROUP, 7, 1.0, denied=True)
    known.payload = None
    assert payload.of_the_container(post.guard.parts, known, write) is write


@pytest.mark.parametrize("looked", [False, True])
async def test_a_write_to_the_scope_shows_in_the_containers_list(
    post: Post, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    """What the scope was denied, and its side effect left out, be it that a look has seen it already."""
    now(monkeypatch, post, GPU1)
    known = post.guard.scopes[GROUP]
    if looked:
        known.seen = DeviceList(7, RuleSet.of("c *:* m", GPU1))
    found = payload.of_the_container(
        post.guard.parts, known, Write(GROUP, 7, 1.0, denied=True, before=OPEN, after=OPEN, restored=rules(GPU0))
    )
    assert found.before == RuleSet.of("c *:* m", GPU0, GPU1)
    assert found.after == RuleSet.of("c *:* m", GPU1)
    assert found.restored == frozenset()


async def test_during_an_outage_it_is_what_was_seen(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer has not taken what was missing before."""
    now(monkeypatch, post)
    known = post.guard.scopes[GROUP]
    known.seen, known.outage = DeviceList(7, RuleSet.of(GPU1)), Outage(None, rules(GPU0), Cause())
    found = payload.of_the_container(post.guard.parts, known, Write(GROUP, 7, 1.0, denied=True))
    assert (found.before, found.after) == (RuleSet.of(GPU1), RuleSet())


@pytest.mark.invariant(4)
async def test_a_list_that_cannot_be_read(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it is not known what came of the write."""

    def read(*_: object) -> Optional[DeviceList]:
        raise CgroupUnreadableError("cannot read devices.list")

    monkeypatch.setattr(post.guard.parts.devices, "read", read)
    found = payload.of_the_container(post.guard.parts, post.guard.scopes[GROUP], Write(GROUP, 7, 1.0, denied=True))
    assert found.after is None
    assert post.kinds() == ["trouble"]


def test_what_the_kernel_takes_along() -> None:
    """A wildcard goes with a device of its that is denied to a scope without a filter; nothing else is excused."""
    before = RuleSet.of("c *:* m", "c 1:3 rwm", "c 8:0 r", "c 195:0 rw")
    owed = RuleSet.of("c 195:0 rw").rules
    after = payload._without_side_effects(before, RuleSet.of("c 1:3 rwm"), owed)
    assert after == RuleSet.of("c *:* m", "c 1:3 rwm")
    untouched = RuleSet.of("c 1:3 rwm", "c 195:0 rw")
    assert payload._without_side_effects(before, untouched, owed) == untouched
