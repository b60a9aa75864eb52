"""Which scope an operator means."""

from __future__ import annotations

import pytest

from gpuguard.errors import NotFoundError
from gpuguard.guard.find import find
from gpuguard.model.runtime_record import Identity, RuntimeRecord
from gpuguard.model.state import State
from tests.guard.conftest import Station
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0 = "c 195:0 rw"


def id_of(scope: SimScope) -> str:
    """Return the container's id."""
    return scope.name[len("docker-") : -len(".scope")]


async def test_by_scope_id_or_short_id(sim: SimNode, station: Station) -> None:
    """A scope's name, an id, and the first 12 digits or more of one are understood; less is not."""
    scope = sim.scope(hook_rules=[GPU0])
    post = await station(sim)
    await post.becomes(scope, State.PROTECTED)
    for name in (scope.name, id_of(scope), id_of(scope)[:12], id_of(scope)[:40]):
        assert find(post.guard, name).target.unit == scope.name
    for name in (id_of(scope)[:11], "", "docker", "f" * 64):
        with pytest.raises(NotFoundError, match="no GPU container of this id, name or scope"):
            find(post.guard, name)


async def test_a_short_id_of_two(sim: SimNode, station: Station) -> None:
    """An id that begins two containers' ids means neither."""
    scopes = [sim.scope(f"docker-{'a' * 60}{number:04d}.scope", hook_rules=[GPU0]) for number in range(2)]
    post = await station(sim)
    for scope in scopes:
        await post.becomes(scope, State.PROTECTED)
    with pytest.raises(NotFoundError) as refusal:
        find(post.guard, "a" * 12)
    told = "".join(f"\n  {id_of(scope)}  docker" for scope in scopes)
    assert str(refusal.value) == f"{'a' * 12}: 2 GPU containers have an id that begins so; give all of it:{told}"
    assert find(post.guard, id_of(scopes[1])).target.unit == scopes[1].name


async def test_by_name(sim: SimNode, station: Station) -> None:
    """A name that one container has means it, an id that reads the same means the other; one of two means none."""
    scopes = [sim.scope(hook_rules=[GPU0]) for _ in range(3)]
    post = await station(sim)
    for scope in scopes:
        await post.becomes(scope, State.PROTECTED)
    names = [Identity("web", "ml", "pod-0"), Identity("web"), Identity(id_of(scopes[0])[:12])]
    for scope, identity in zip(scopes, names):
        post.of(scope).record = RuntimeRecord(identity=identity)
    assert find(post.guard, "ml/pod-0/web") is post.of(scopes[0])
    assert find(post.guard, id_of(scopes[0])[:12]) is post.of(scopes[0])
    with pytest.raises(NotFoundError) as refusal:
        find(post.guard, "web")
    told = sorted([f"  {id_of(scopes[0])[:12]}  docker ml/pod-0/web", f"  {id_of(scopes[1])[:12]}  docker web"])
    assert str(refusal.value).splitlines() == ["web: 2 GPU containers have this name; give an id:", *told]


async def test_of_many_some_are_told(sim: SimNode, station: Station) -> None:
    """A name that a whole Deployment has does not fill the screen."""
    scopes = [sim.scope(hook_rules=[GPU0]) for _ in range(11)]
    post = await station(sim)
    for number, scope in enumerate(scopes):
        await post.becomes(scope, State.PROTECTED)
        post.of(scope).record = RuntimeRecord(identity=Identity("web", "ml", f"pod-{number}"))
    with pytest.raises(NotFoundError) as refusal:
        find(post.guard, "web")
    first, *told, last = str(refusal.value).splitlines()
    assert (first, len(told), last) == ("web: 11 GPU containers have this name; give an id:", 8, "  and 3 more")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("trainr", {0}),
        ("train-0", {0}),
        ("ml/train-0", {0}),
        ("ml/", {0, 1}),
        ("ID", {1}),
        ("ml/train-1/main", {0}),
        ("nothing-like-it", set()),
        ("x" * 2000, set()),
        ("ml", set()),
    ],
)
async def test_who_mistypes_is_told_what_there_is(sim: SimNode, station: Station, typed: str, meant: set[int]) -> None:
    """A slip, a pod's name, or the beginning of an id: the message has what to type instead, if anything is like it."""
    scopes = [sim.scope(hook_rules=[GPU0]) for _ in range(3)]
    post = await station(sim)
    names = [Identity("trainer", "ml", "train-0"), Identity("web", "ml", "server"), Identity()]
    for scope, identity in zip(scopes, names):
        await post.becomes(scope, State.PROTECTED)
        post.of(scope).record = RuntimeRecord(identity=identity)
    with pytest.raises(NotFoundError) as refusal:
        find(post.guard, id_of(scopes[1])[:8] if typed == "ID" else typed)
    first, *told = str(refusal.value).splitlines()
    assert first.endswith("; did you mean:") == bool(meant)
    assert set(told) == {f"  {id_of(scopes[n])[:12]}  docker {names[n].full_name}" for n in meant}


async def test_a_container_without_gpu(sim: SimNode, station: Station) -> None:
    """A container without guarded devices is none of ours."""
    scope = sim.scope()
    post = await station(sim)
    await post.until(lambda: scope.group in post.guard.scopes, "the scope was not found")
    with pytest.raises(NotFoundError):
        find(post.guard, scope.name)
    post.guard.scopes[scope.group].record = RuntimeRecord(refusal="its request was refused")
    for name in (scope.name, id_of(scope), id_of(scope)[:12]):
        with pytest.raises(NotFoundError, match="not known as a GPU container: its request was refused"):
            find(post.guard, name)
