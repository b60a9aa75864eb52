"""What the sentinel is told to watch: the young, the settling, and what is lost there."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.guard import orders
from gpuguard.guard.parts import Parts, Policy
from gpuguard.guard.scope import Scope
from gpuguard.kernel.devices_v2 import DevicesV2
from gpuguard.model.device_list import Payload
from gpuguard.model.observation import Declared
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.write import Watched
from tests.guard.made import GPU0, GPU1, GROUP, entitled, scope
from tests.guard.post import Post
from tests.lab.sim.node import SimNode
from tests.model.looks import rules

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


async def test_one_that_is_in_another_group(post: Post, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own list restricts nobody, and what a reload takes from it is no loss; whom `exec` puts there it does."""
    parts, inhabited = post.guard.parts, {GROUP: False}
    monkeypatch.setattr(parts.devices, "populated", inhabited.__getitem__)
    found = scope(known=entitled(GPU0), effective=RuleSet.of(GPU0))
    assert watches(post, found)
    found.record = replace(found.record, elsewhere="/a.slice")
    assert not watches(post, found)
    inhabited[GROUP] = True
    assert watches(post, found)
    inhabited.clear()
    monkeypatch.undo()  # the group is gone: the look tells
    assert watches(post, found)


def given(post: Post, found: Scope, policy: Optional[Policy] = None) -> Optional[Watched]:
    """Give the orders; return what the sentinel was told of the scope, None for nothing."""
    orders.give(post.guard.parts, policy or post.guard.policy, found)
    return post.guard.parts.sentinel._watched.get(GROUP)


def whole(*declared: str, settled: bool = True) -> Scope:
    """Return a scope that has both its devices, of which systemd declares some."""
    return scope(
        known=entitled(GPU0, GPU1, settled=settled),
        effective=RuleSet.of(GPU0, GPU1),
        declared=Declared(RuleSet.of(*declared)),
    )


async def test_what_systemd_declares_is_told_apart(post: Post) -> None:
    """The rest is to be given back at once."""
    assert given(post, whole(GPU0)) == Watched(GROUP, 7, rules(GPU1), rules(GPU0))
    assert given(post, whole("c 195:* rwm")) == Watched(GROUP, 7, rules(), rules(GPU0, GPU1))


async def test_while_systemd_does_not_answer_it_keeps_what_it_was_told(post: Post) -> None:
    """But nothing that the scope is not entitled to any more."""
    found = whole(GPU0, GPU1)
    given(post, found)
    found.view = None
    assert given(post, found) == Watched(GROUP, 7, rules(), rules(GPU0, GPU1))
    found.entitled = entitled(GPU0)
    assert given(post, found) == Watched(GROUP, 7, rules(), rules(GPU0))


async def test_while_it_settles_what_appears_is_still_learnt(post: Post) -> None:
    """The sentinel looks at what is allowed, too."""
    watched = given(post, whole(settled=False))
    assert watched is not None
    assert watched.growing


async def test_nothing_is_given_back_in_observe_mode(post: Post) -> None:
    """It is watched all the same, to be told of."""
    watched = given(post, whole(), replace(post.guard.policy, enforce=False))
    assert watched is not None
    assert not watched.heal


async def test_nothing_is_given_back_in_a_pause(post: Post) -> None:
    """Two that fight pause, whichever of gpuguard's processes it was."""
    found = whole()
    found.backoff.until = time.monotonic() + 100.0
    watched = given(post, found)
    assert watched is not None
    assert not watched.heal
    assert found.paused
    found.backoff.until = 0.0
    assert given(post, found) == Watched(GROUP, 7, rules(GPU0, GPU1))
    assert not found.paused


async def test_nothing_is_given_back_to_what_may_run_again(post: Post) -> None:
    """What another run of a service lacks was not taken from it."""
    found = whole()
    found.target = replace(found.target, unit="ollama.service")
    watched = given(post, found)
    assert watched is not None
    assert not watched.heal


async def test_of_a_list_that_cannot_be_read_it_keeps_what_it_was_told(post: Post) -> None:
    """A look that failed is no news."""
    found = whole()
    before = given(post, found)
    found.seen, found.entitled = None, entitled(GPU0)
    assert given(post, found) is before


async def test_what_has_no_filter_any_more_is_let_go(post: Post) -> None:
    """There is nothing that could be given back."""
    found = whole()
    assert given(post, found) is not None
    opened = scope(known=entitled(GPU0), effective=RuleSet(unrestricted=True))
    assert given(post, opened) is None


async def test_the_containers_own_group_is_watched_as_well(post: Post) -> None:
    """With the same rules; another one in its place, or none, and the former is let go."""
    found, watched = whole(), post.guard.parts.sentinel._watched
    assert found.seen is not None
    for payload in (Payload(f"{GROUP}/container", 8), Payload(f"{GROUP}/container", 9), Payload(f"{GROUP}/sub", 10)):
        found.seen = replace(found.seen, payload=payload)
        scopes = given(post, found)
        assert scopes == Watched(GROUP, 7, rules(GPU0, GPU1))
        inner = replace(scopes, control_group=payload.control_group, inode=payload.inode)
        assert watched == {GROUP: scopes, payload.control_group: inner}
    found.seen = replace(found.seen, payload=None)
    given(post, found)
    assert list(watched) == [GROUP]


async def test_what_systemd_declares_it_does_not_write_there(post: Post) -> None:
    """In the container's own group below its scope all is to be given back at once."""
    found, watched = whole(GPU0), post.guard.parts.sentinel._watched
    assert found.seen is not None
    found.seen = replace(found.seen, payload=Payload(f"{GROUP}/container", 8))
    assert given(post, found) == Watched(GROUP, 7, rules(GPU1), rules(GPU0))
    assert watched[f"{GROUP}/container"] == Watched(f"{GROUP}/container", 8, rules(GPU0, GPU1))


async def test_it_is_let_go_with_its_scope(post: Post) -> None:
    """When the container ends, or is found to have no devices."""
    found, watched = whole(), post.guard.parts.sentinel._watched
    assert found.seen is not None
    inner = replace(found.seen, payload=Payload(f"{GROUP}/container", 8))
    found.seen = inner
    given(post, found)
    post.guard.scopes[GROUP] = found
    post.guard.gone(GROUP)
    assert watched == {}
    found.seen, found.entitled = inner, None
    found.known_since = time.monotonic()
    given(post, found)
    assert list(watched) == [GROUP, f"{GROUP}/container"]
    found.known_since -= 100.0
    given(post, found)
    assert watched == {}


async def test_on_cgroup_v2_nothing_is_watched(post: Post) -> None:
    """There is no list to write to."""
    post.guard.parts = replace(post.guard.parts, devices=DevicesV2(post.node.root, frozenset))
    assert given(post, whole()) is None
