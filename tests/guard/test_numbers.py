"""What is the matter with a scope's numbers is reckoned when there is something new to reckon with, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuguard.guard import numbers
from gpuguard.model import stale as model
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from tests.guard.conftest import Station
from tests.guard.post import NEVER, Post
from tests.guard.test_records import GPU0, GPU1, moved, of_nvidia
from tests.lab.sim.node import SimNode

UVM = Rule.parse("c 510:0 rw")
NVIDIA, OTHER = ("c", 195, "nvidia"), ("c", 195, "other")


class Count:
    """Counts how often it is reckoned."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times = 0
        genuine = model.stale

        def stale(*facts: object) -> object:
            self.times += 1
            return genuine(*facts)  # type: ignore[arg-type]  # as it was called

        monkeypatch.setattr(model, "stale", stale)

    def since(self) -> int:
        """Return how often, since the last time that it was asked."""
        times, self.times = self.times, 0
        return times


@pytest.fixture
async def post(sim: SimNode, station: Station) -> Post:
    """Return a guard that looks when it is told to, with a protected container of NVIDIA's."""
    scope = sim.scope(hook_rules=[GPU0])
    post = await station(sim, {"guard": {"poll_interval": NEVER}})
    await post.becomes(scope, State.PROTECTED)
    await post.quiet()
    of_nvidia(post, scope)
    return post


async def test_a_look_without_news_reckons_nothing(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one with news reckons once."""
    count, ((group, _),) = Count(monkeypatch), post.guard.scopes.items()
    await post.guard.look(group, fresh=True)
    count.since()
    await post.guard.look(group, fresh=True)
    assert count.since() == 0
    moved(post, NVIDIA)
    await post.guard.look(group, fresh=True)
    assert count.since() == 1


async def test_each_of_the_facts_counts(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers, what a container is entitled to and whose it was then, and what its runtime's files say."""
    (scope,) = post.guard.scopes.values()
    parts, count = post.guard.parts, Count(monkeypatch)
    moved(post, OTHER)
    assert list(numbers.of(parts, scope).stale) == [Rule.parse(GPU0)]
    assert scope.entitled is not None
    scope.entitled = replace(scope.entitled, rules=scope.entitled.rules | {Rule.parse(GPU1)})
    assert len(numbers.of(parts, scope).stale) == 2
    moved(post)
    assert numbers.of(parts, scope).idle == {Rule.parse(GPU0), Rule.parse(GPU1)}
    scope.entitled = replace(scope.entitled, rules=scope.entitled.rules | {UVM}, drivers=frozenset())
    assert numbers.of(parts, scope).idle == frozenset()
    moved(post, nodes={"/dev/nvidia-uvm": DeviceNumber("c", 511, 0)})
    assert not numbers.of(parts, scope).stale
    scope.record = replace(scope.record, nodes={"/dev/nvidia-uvm": DeviceNumber("c", 510, 0)})
    assert list(numbers.of(parts, scope).stale) == [UVM]
    assert count.since() == 6
    scope.entitled = replace(scope.entitled, quiet_since=1.0)
    numbers.of(parts, scope)
    assert count.since() == 0
