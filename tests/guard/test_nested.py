"""What a look does to the groups inside a container, on the kernel's own v1 hierarchy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

import pytest
from blockbuster import BlockBuster

from gpuguard.errors import CgroupUnreadableError
from gpuguard.guard import nested
from gpuguard.guard.mend import Target
from gpuguard.guard.scope import Scope
from gpuguard.guard.verbs import planned
from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.kernel.nested_v1 import MOST_GROUPS
from gpuguard.model.device_list import Payload
from gpuguard.model.entitlement import release
from gpuguard.model.nested import MOST_TOLD, GroupBelow
from gpuguard.model.rule import Rule
from tests.guard.made import GPU0, GPU1, entitled, scope
from tests.guard.post import Post
from tests.kernel.groups import Groups
from tests.lab.sim.node import SimNode
from tests.model.looks import rules

NULL = "c 1:3 rwm"


@dataclass
class Ward:
    """A guard that knows one container, and looks when it is told to."""

    post: Post
    groups: Groups
    scope: Scope

    def make(self, path: str, *denied: str) -> str:
        """Make a group below the container's."""
        control_group = f"{self.groups.scope}/{path}"
        self.groups.path(control_group).mkdir()
        for rule in denied:
            self.groups.deny(control_group, rule)
        return control_group

    def has(self, path: str) -> list[str]:
        """Return the GPUs that a group below has."""
        return [rule for rule in (GPU0, GPU1) if rule in self.groups.lines(f"{self.groups.scope}/{path}")]

    @property
    def known(self) -> list[tuple[str, frozenset[Rule], frozenset[Rule]]]:
        """Return what is remembered."""
        assert self.scope.entitled is not None
        return [(group.path, group.rules, group.owed) for group in self.scope.entitled.nested]

    async def look(self, *, enforce: bool = True) -> None:
        """Look once."""
        parts = self.post.guard.parts
        self.scope.seen = parts.devices.read(self.groups.scope)
        policy = replace(self.post.guard.policy, enforce=enforce)
        await nested.look(parts, policy, self.scope, self.post.guard.keep)

    def repairs(self, result: str = "") -> float:
        """Return how many writes were counted that had this result; without one, how many at all."""
        labels = {"result": result} if result else {}
        return self.post.value("gpuguard_repairs_total", method="write", **labels)

    def due(self) -> bool:
        """Whether the clock would ask for a look."""
        self.scope.counted_below = 0.0
        return nested.due(self.post.guard.parts, self.post.guard.policy, self.scope)

    def lose(self, rule: str, *, again: bool = False) -> None:
        """Take a rule from the container, note it, and give it back to the container alone unless `again`."""
        self.groups.deny(self.groups.scope, rule)
        nested.strike(self.post.guard.keep, self.scope, rules(rule))
        if not again:
            self.groups.allow(self.groups.scope, rule)


@pytest.fixture
async def ward(sim: SimNode, kernel: Groups) -> AsyncIterator[Ward]:
    """Return a guard of a container with both GPUs."""
    post = Post(sim)
    post.build()
    inode = kernel.make(kernel.scope, NULL, GPU0, GPU1)
    post.guard.parts = replace(post.guard.parts, devices=kernel.devices)
    found = scope(known=replace(entitled(GPU0, GPU1, inode=inode), control_group=kernel.scope))
    found.target = Target(kernel.scope.rpartition("/")[2], kernel.scope, inode, kernel.scope)
    post.guard.scopes[kernel.scope] = found
    yield Ward(post, kernel, found)
    await post.stop()


async def test_an_ordinary_container_costs_nothing(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing below: nothing is listed."""
    monkeypatch.setattr(DevicesV1, "groups", None)
    await ward.look()
    assert not ward.due()
    assert ward.known == []


async def test_the_first_group_is_news_and_remembered(ward: Ward) -> None:
    """Then nothing is due until something changes."""
    ward.make("a")
    ward.scope.seen = ward.post.guard.parts.devices.read(ward.groups.scope)
    assert ward.due()
    await ward.look()
    assert ward.known == [("a", rules(GPU0, GPU1), frozenset())]
    assert not ward.due()
    ward.groups.deny(f"{ward.groups.scope}/a", GPU0)
    assert ward.due()
    await ward.look()
    assert ward.known == [("a", rules(GPU1), frozenset())]
    assert ward.post.events("restored_below") == []


async def test_the_clock_asks_once_a_second(ward: Ward) -> None:
    """However quick its rounds are."""
    ward.make("a")
    ward.scope.seen = ward.post.guard.parts.devices.read(ward.groups.scope)
    assert ward.due()
    assert not nested.due(ward.post.guard.parts, ward.post.guard.policy, ward.scope)


async def test_what_went_with_the_container_comes_back_from_the_top(ward: Ward) -> None:
    """As far as each had it; told once, and remembered as before."""
    for path in ("a", "a/b", "a/b/c"):
        ward.make(path)
    ward.make("x", GPU0)
    await ward.look()
    before = ward.known
    ward.lose(GPU0)
    assert [path for path, _, owed in ward.known if owed] == ["a", "a/b", "a/b/c"]
    await ward.look()
    assert [ward.has(path) for path in ("a", "a/b", "a/b/c", "x")] == [[GPU0, GPU1]] * 3 + [[GPU1]]
    assert ward.known == before
    (event,) = ward.post.events("restored_below")
    assert event["groups"] == ["a", "a/b", "a/b/c"]
    assert ward.scope.deeds == [f"write {GPU0} to {path}" for path in ("a", "a/b", "a/b/c")]
    assert ward.repairs("ok") == 3
    assert ward.post.value("gpuguard_repair_seconds_count", method="write") == 3
    await ward.look()
    assert ward.repairs() == 3


async def test_not_while_the_container_itself_lacks_it(ward: Ward) -> None:
    """It is owed until then."""
    ward.make("a")
    await ward.look()
    ward.lose(GPU0, again=True)
    await ward.look()
    await ward.look()
    assert ward.has("a") == [GPU1]
    assert ward.repairs() == 0
    ward.groups.allow(ward.groups.scope, GPU0)
    await ward.look()
    assert ward.has("a") == [GPU0, GPU1]
    assert ward.repairs("ok") == 1


async def test_what_the_container_lacks_meanwhile_stays_owed(
    ward: Ward, monkeypatch: pytest.MonkeyPatch, nothing_blocks: BlockBuster
) -> None:
    """Where it has lost it again before its groups are written, none of these is what denies it."""
    nothing_blocks.functions["os.write"].can_block_in("tests/kernel/groups.py", {"_write"})
    ward.make("a")
    await ward.look()
    ward.lose(GPU0)
    genuine = DevicesV1.allow_below

    def too_late(devices: DevicesV1, group: str, inode: int, below: tuple[str, int], rule: Rule) -> None:
        ward.groups.deny(ward.groups.scope, GPU0)
        genuine(devices, group, inode, below, rule)

    with monkeypatch.context() as patched:
        patched.setattr(DevicesV1, "allow_below", too_late)
        await ward.look()
    assert [owed for *_, owed in ward.known] == [rules(GPU0)]
    ward.groups.allow(ward.groups.scope, GPU0)
    await ward.look()
    assert ward.has("a") == [GPU0, GPU1]


async def test_what_one_has_again_already_is_not_told(ward: Ward) -> None:
    """Only what is missing is written."""
    ward.make("a")
    ward.make("b")
    await ward.look()
    ward.lose(GPU0)
    ward.groups.allow(f"{ward.groups.scope}/a", GPU0)
    await ward.look()
    (event,) = ward.post.events("restored_below")
    assert event["groups"] == ["b"]
    assert ward.scope.deeds == [f"write {GPU0} to b"]


async def test_the_containers_own_group_is_none_of_them(ward: Ward) -> None:
    """What it lacks is given back as the scope's."""
    own = ward.make("container")
    ward.make("container/job")
    devices = ward.post.guard.parts.devices
    ward.scope.seen = replace(devices.read(ward.groups.scope), payload=Payload(own, devices.inode(own)))
    await nested.look(ward.post.guard.parts, ward.post.guard.policy, ward.scope, ward.post.guard.keep)
    assert [path for path, *_ in ward.known] == ["container/job"]


@pytest.mark.invariant(3)
async def test_what_is_not_read_back_has_failed(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted as that, stays owed, and is tried again."""
    for path in ("a", "b"):
        ward.make(path)
    await ward.look()
    ward.lose(GPU0)
    genuine = DevicesV1.allow_below

    def in_vain(devices: DevicesV1, group: str, inode: int, below: tuple[str, int], rule: Rule) -> None:
        if below[0] != "a":
            genuine(devices, group, inode, below, rule)

    with monkeypatch.context() as patched:
        patched.setattr(DevicesV1, "allow_below", in_vain)
        await ward.look()
    assert (ward.repairs("ok"), ward.repairs("failed")) == (1, 1)
    await ward.look()
    assert ward.has("a") == [GPU0, GPU1]
    assert (ward.repairs("ok"), ward.repairs("failed")) == (2, 1)


async def test_not_in_observe_mode(ward: Ward) -> None:
    """Nothing is written."""
    ward.make("a")
    await ward.look(enforce=False)
    ward.lose(GPU0)
    await ward.look(enforce=False)
    assert ward.has("a") == [GPU1]
    assert ward.repairs() == 0


async def test_a_dry_run_tells_them(ward: Ward) -> None:
    """From the top, and only what is missing; also while the container itself lacks it."""
    for path in ("a", "a/b", "x"):
        ward.make(path)
    ward.groups.deny(f"{ward.groups.scope}/x", GPU0)
    await ward.look(enforce=False)
    assert planned(ward.scope, writable=True).deeds == ()
    ward.lose(GPU0, again=True)
    for _ in range(2):
        await ward.look(enforce=False)
        assert planned(ward.scope, writable=True).deeds == (f"write {GPU0} to a", f"write {GPU0} to a/b")
        ward.groups.allow(ward.groups.scope, GPU0)
    ward.groups.allow(f"{ward.groups.scope}/a", GPU0)
    await ward.look(enforce=False)
    assert planned(ward.scope, writable=True).deeds == (f"write {GPU0} to a/b",)


async def test_not_what_was_released(ward: Ward) -> None:
    """Neither what is owed nor what was had."""
    ward.make("a")
    await ward.look()
    ward.lose(GPU0)
    assert ward.scope.entitled is not None
    ward.post.guard.keep(ward.scope, release(ward.scope.entitled, frozenset(["c 195:0"])))
    await ward.look()
    assert ward.has("a") == [GPU1]


async def test_who_has_seen_the_loss_is_heard_first(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container is whole again when the look comes: that its groups lack something is not their own doing."""
    ward.make("a")
    await ward.look()
    ward.groups.deny(ward.groups.scope, GPU0)
    ward.groups.allow(ward.groups.scope, GPU0)

    async def caught_up() -> None:
        nested.strike(ward.post.guard.keep, ward.scope, rules(GPU0))

    monkeypatch.setattr(ward.post.guard.parts.sentinel, "caught_up", caught_up)
    await ward.look()
    assert ward.has("a") == [GPU0, GPU1]


@pytest.mark.invariant(6)
async def test_what_a_group_in_there_denies_is_told_and_not_tried_again(ward: Ward) -> None:
    """It has lost it by itself since the last look: the one below cannot have it."""
    ward.make("a")
    ward.make("a/b")
    await ward.look()
    ward.lose(GPU0)
    assert ward.scope.entitled is not None
    upper, lower = ward.scope.entitled.nested
    ward.post.guard.keep(ward.scope, replace(ward.scope.entitled, nested=(replace(upper, owed=frozenset()), lower)))
    await ward.look()
    assert ward.has("a/b") == [GPU1]
    (trouble,) = ward.post.events("trouble")
    assert f"its ancestor {ward.groups.scope}/a denies it" in trouble["reason"]
    assert ward.repairs() == 0  # no failure of gpuguard's, of which it would warn
    assert not ward.due()


@pytest.mark.invariant(4)
async def test_what_cannot_be_read_is_no_news(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was known stays known, and nothing is written."""
    ward.make("a")
    await ward.look()
    before = ward.known

    def unreadable(*_: object) -> tuple[list[GroupBelow], bool]:
        raise CgroupUnreadableError("cannot list its control groups")

    monkeypatch.setattr(DevicesV1, "groups", unreadable)
    assert ward.due()
    await ward.look()
    assert ward.known == before
    assert ward.post.kinds() == ["trouble"]


@pytest.mark.invariant(10)
async def test_more_than_can_be_looked_at(ward: Ward) -> None:
    """It is said, once."""
    for number in range(MOST_GROUPS + 1):
        ward.make(f"n{number:03}")
    await ward.look()
    await ward.look()
    assert len(ward.known) == MOST_GROUPS
    (trouble,) = ward.post.events("trouble")
    assert f"more than {MOST_GROUPS} control groups" in trouble["reason"]


@pytest.mark.invariant(10)
async def test_some_of_many_are_told(ward: Ward) -> None:
    """A container may make hundreds, whose names are as long as paths can be: an answer to the command has a bound."""
    names = [f"n{number:03}" for number in range(MOST_TOLD + 5)]
    for name in names:
        ward.make(name)
    await ward.look()
    ward.lose(GPU0)
    expected = [*(f"write {GPU0} to {name}" for name in names[:MOST_TOLD]), "write to groups inside 5 times more"]
    await ward.look(enforce=False)
    assert planned(ward.scope, writable=True).deeds == tuple(expected)
    await ward.look()
    assert ward.scope.deeds == expected


async def test_odd_names_are_cleaned_where_they_are_told(ward: Ward) -> None:
    """A container may name its groups as it likes: bytes that are no text, control characters."""
    for name in (b"a\xff", b"\x1b[31m"):
        (ward.groups.path(ward.groups.scope) / name.decode(errors="surrogateescape")).mkdir()
    await ward.look()
    ward.lose(GPU0)
    await ward.look()
    (event,) = ward.post.events("restored_below")
    assert event["groups"] == ["\ufffd[31m", "a\ufffd"]
    assert sorted(ward.scope.deeds) == [f"write {GPU0} to a\ufffd", f"write {GPU0} to \ufffd[31m"]
    assert len(ward.known) == 2
