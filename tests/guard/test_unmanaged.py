"""Containers that systemd does not manage, on the kernel's v1 hierarchy: no bus is there, and none is needed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from gpuguard.config import Settings
from gpuguard.guard.build import Assembly, assemble
from gpuguard.guard.candidates import Candidates
from gpuguard.guard.clock import Clock
from gpuguard.guard.guard import Guard
from gpuguard.guard.mend import Target
from gpuguard.guard.units import Units
from gpuguard.kernel.device_files import OpenHierarchy
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.model.container_group import ContainerGroup
from gpuguard.model.refusal import Refusal
from gpuguard.model.state import State
from gpuguard.report.metrics import Metrics
from tests.guard.log import capturing_log
from tests.kernel.groups import Groups, kernel_groups
from tests.report.support import until

ID, OTHER = "ab" * 32, "0c" * 32
LOOSE, LOOK_ALIKE = f"/docker/{ID}", f"/docker/{OTHER}"
PAYLOAD = f"/system.slice/llm.service/libpod-payload-{ID}"
NULL, GPU0, GPU1 = "c 1:3 rwm", "c 195:0 rw", "c 195:1 rw"
SETTLE = 0.05


@pytest.fixture
def groups() -> Iterator[Groups]:
    """Return the top of a hierarchy with a container beside the slices, a look-alike, and one below a service."""
    with kernel_groups() as made:
        inner = Groups(made.path(made.slice), "/system.slice")
        for group in (LOOSE, LOOK_ALIKE, PAYLOAD):
            inner.path(group).mkdir(parents=True)
            inner.make(group, NULL, GPU0)
        yield inner


class Alone:
    """A guard of the containers there, which has no bus."""

    def __init__(self, assembly: Assembly) -> None:
        self._assembly = assembly
        self._clock = Clock(assembly.guard, assembly.watch, 1.0, SETTLE)

    @property
    def guard(self) -> Guard:
        """The guard."""
        return self._assembly.guard

    async def round(self) -> None:
        """Make a round of the clock, and wait for all looks."""
        self._clock.round()
        await self._assembly.watch.idle()

    async def becomes(self, group: str, state: State) -> None:
        """Make rounds until a container is in a state."""
        for _ in range(200):
            await self.round()
            if group in self.guard.scopes and self.guard.scopes[group].state is state:
                return
            await asyncio.sleep(SETTLE)
        raise AssertionError(self.guard.scopes.get(group))


@pytest.fixture
async def alone(groups: Groups, tmp_path: Path) -> AsyncIterator[Alone]:
    """Return the guard; nobody vouches for the look-alike."""
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "devices").symlink_to(groups.root)
    paths = {"cgroup": str(tmp_path / "cgroup"), "run": str(tmp_path / "run"), "bus": "unix:path=/nonexistent/bus"}
    settings = Settings.from_mapping({"paths": paths, "guard": {"shield": True}})
    log, _ = capturing_log()

    async def vouches(group: ContainerGroup) -> bool:
        return group.control_group != LOOK_ALIKE

    assembly = assemble(settings, Metrics(), log, enforce=True, settle=SETTLE, writable=True)
    object.__setattr__(assembly.guard.parts, "candidates", Candidates(Units(settings.scopes), vouches))
    yield Alone(assembly)
    await assembly.close()


@pytest.mark.parametrize(("group", "why"), [(LOOSE, Refusal.UNMANAGED), (PAYLOAD, Refusal.BELOW)])
async def test_protected_without_systemd(alone: Alone, groups: Groups, group: str, why: Refusal) -> None:
    """Nobody rewrites it: it is protected, says why, and gets neither a declaration nor a shield."""
    await alone.becomes(group, State.PROTECTED)
    scope = alone.guard.scopes[group]
    assert (scope.reason, scope.restarts) == (why.value, False)
    await alone.round()
    assert alone.guard.calm(group, groups.inode(group))
    assert not groups.path(f"{group}/{SHIELD}").exists()
    assert groups.lines(group) == [NULL, GPU0]


@pytest.mark.parametrize("group", [LOOSE, PAYLOAD])
async def test_what_it_loses_is_written_back(alone: Alone, groups: Groups, group: str) -> None:
    """By a look, too, without the sentinel; and nothing that was not given."""
    await alone.becomes(group, State.PROTECTED)
    groups.deny(group, GPU0)
    await alone.becomes(group, State.PROTECTED)
    await until(lambda: groups.lines(group) == [NULL, GPU0])
    assert alone.guard.scopes[group].view is not None


@pytest.mark.invariant(1)
async def test_a_look_alike_is_nobody(alone: Alone, groups: Groups) -> None:
    """What no runtime vouches for is not known, and nothing is given back there."""
    await alone.becomes(LOOSE, State.PROTECTED)
    groups.deny(LOOK_ALIKE, GPU0)
    await alone.round()
    assert set(alone.guard.scopes) == {LOOSE, PAYLOAD}
    assert groups.lines(LOOK_ALIKE) == [NULL]


@pytest.mark.invariant(5)
async def test_another_of_the_same_name_is_another(alone: Alone, groups: Groups) -> None:
    """A container that ended leaves nothing to the next one of its name."""
    await alone.becomes(LOOSE, State.PROTECTED)
    groups.path(LOOSE).rmdir()
    groups.path(LOOSE).mkdir()
    groups.make(LOOSE, NULL, GPU1)
    await alone.becomes(LOOSE, State.PROTECTED)
    entitled = alone.guard.scopes[LOOSE].entitled
    assert entitled is not None
    assert set(map(str, entitled.rules)) == {GPU1}
    assert groups.lines(LOOSE) == [NULL, GPU1]


def test_the_sentinel_opens_it_too(groups: Groups) -> None:
    """What is healed at the write is written through files that are held open."""
    for group in (LOOSE, PAYLOAD):
        files = OpenHierarchy(groups.root).files(group, groups.inode(group))
        groups.deny(group, GPU0)
        assert files.write([GPU0.encode()]) == ""
        files.close()
        assert groups.lines(group) == [NULL, GPU0]


@pytest.mark.parametrize(
    ("unit_group", "on_v1", "on_v2"),
    [("/system.slice/a.scope", True, True), ("/system.slice", False, True), (None, False, False)],
)
def test_what_systemds_rewrites_reach(unit_group: str, on_v1: bool, on_v2: bool) -> None:
    """A unit itself; what is below one on cgroup v2; nothing else."""
    target = Target("a.scope", "/system.slice/a.scope", 7, unit_group)
    assert (target.managed(writable=True), target.managed(writable=False)) == (on_v1, on_v2)
