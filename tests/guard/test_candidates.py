"""Who counts as a container without a scope: whom its runtime vouches for, asked seldom and remembered in bounds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Optional

import pytest

from gpuguard.config import Scopes
from gpuguard.guard import candidates
from gpuguard.guard.candidates import Candidates
from gpuguard.guard.units import Units
from gpuguard.model.container_group import ContainerGroup, parse

ID = "ab" * 32
GROUP = f"/docker/{ID}"
PAYLOAD = f"/system.slice/llm.service/libpod-payload-{ID}"


class Runtimes:
    """Vouch for some control groups, and count who asks."""

    def __init__(self, *known: str) -> None:
        self.known = set(known)
        self.asked: list[str] = []

    async def vouches(self, group: ContainerGroup) -> bool:
        """Whether it is known."""
        self.asked.append(group.control_group)
        return group.control_group in self.known


def group(control_group: str = GROUP) -> ContainerGroup:
    """Return a control group that looks like a container."""
    found = parse(control_group)
    assert found is not None
    return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time in a list of one."""
    now = [1000.0]
    monkeypatch.setattr(candidates, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def made(runtimes: Runtimes, settings: Optional[Scopes] = None) -> Candidates:
    """Return candidates that these runtimes know."""
    return Candidates(Units(settings or Scopes()), runtimes.vouches)


@pytest.mark.usefixtures("clock")
async def test_who_is_vouched_for_is_asked_about_once() -> None:
    """Until its control group is gone; another of that name is somebody else."""
    runtimes = Runtimes(GROUP)
    known = made(runtimes)
    for _ in range(5):
        assert await known.vouched(group(), 7)
        assert known.known(group(), 7) is True
    assert len(runtimes.asked) == 1
    runtimes.known.clear()
    assert not await known.vouched(group(), 8)
    known.forget(GROUP, 7)
    assert not await known.vouched(group(), 7)


async def test_who_is_refused_is_asked_about_less_and_less(clock: list[float]) -> None:
    """Some files are written late: a container is found in a second or two; a look-alike costs nothing for long."""
    runtimes = Runtimes()
    known = made(runtimes)
    looks = 0
    for _ in range(3600):
        looks += known.known(group(), 7) is None
        assert not await known.vouched(group(), 7)
        clock[0] += 1.0
    assert 15 < len(runtimes.asked) == looks < 25
    runtimes.known.add(GROUP)
    clock[0] += 300.0
    assert await known.vouched(group(), 7)


@pytest.mark.usefixtures("clock")
async def test_another_inode_is_asked_about_at_once() -> None:
    """Who was refused is one control group, not a name."""
    runtimes = Runtimes()
    known = made(runtimes)
    assert not await known.vouched(group(), 7)
    runtimes.known.add(GROUP)
    assert await known.vouched(group(), 8)
    assert known.known(group(), 7) is False
    assert not await known.vouched(group(), 7)


@pytest.mark.invariant(10)
@pytest.mark.usefixtures("clock")
async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes control groups by the thousand is remembered by the latest alone."""
    monkeypatch.setattr(candidates, "_REMEMBERED", 10)
    known = made(Runtimes(GROUP))
    for inode in range(100):
        assert await known.vouched(group(), inode)
        assert not await known.vouched(group(f"/default/{ID}"), inode)
    assert (len(known._vouched), len(known._refused)) == (10, 10)


@pytest.mark.parametrize(
    ("pattern", "left"),
    [
        ("/docker/*", GROUP),
        (GROUP, GROUP),
        ("llm.service", PAYLOAD),
        ("l*.service", PAYLOAD),
        ("/system.slice/llm.service/*", PAYLOAD),
        ("docker-*.scope", None),
    ],
)
async def test_who_is_excluded_is_not_asked_about(pattern: str, left: Optional[str]) -> None:
    """By its control group, or by the service that it is below."""
    runtimes = Runtimes(GROUP, PAYLOAD)
    known = made(runtimes, Scopes(exclude=(pattern,)))
    for one in (GROUP, PAYLOAD):
        assert await known.vouched(group(one), 7) is (one != left)
        assert (one in runtimes.asked) is (one != left)
