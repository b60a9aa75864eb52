"""What the sentinel is told to watch: the young, the settling, and what is lost there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from gpuguard.guard import orders
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Scope
from gpuguard.model.ruleset import RuleSet
from tests.guard.made import GPU0, GROUP, entitled, scope
from tests.guard.post import Post
from tests.lab.sim.node import SimNode

PLAIN = RuleSet.of("c 5:0 rwm")


@pytest.fixture
async def post(sim: SimNode) -> AsyncIterator[Post]:
    """Return a guard of which nothing runs."""
    post = Post(sim)
    post.build()
    yield post
    await post.stop()


def watches(post: Post, found: Scope) -> bool:
    """Give the orders, and return whether the scope is watched."""
    parts: Parts = post.guard.parts
    policy: Policy = post.guard.policy
    orders.give(parts, policy, found)
    return parts.sentinel.watches(GROUP)


async def test_a_young_scope_is_watched_before_it_has_devices(post: Post) -> None:
    """It may be given some any moment; after a minute without it is let go, at the clock's next round."""
    found = scope(None, effective=PLAIN)
    found.known_since = time.monotonic()
    assert watches(post, found)
    assert not orders.due(post.guard.parts, found)
    found.known_since -= 100.0
    assert orders.due(post.guard.parts, found)
    assert not watches(post, found)
    assert not orders.due(post.guard.parts, found)


async def test_an_entitled_scope_is_watched_for_good(post: Post) -> None:
    """However old it is."""
    found = scope(known=entitled(GPU0), effective=RuleSet.of(GPU0))
    assert watches(post, found)
    assert not orders.due(post.guard.parts, found)
