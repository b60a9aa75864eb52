"""Finding containers on the kernel's own hierarchies, cgroup v1 and v2 alike: what is yielded, and what never is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuguard.errors import CgroupGoneError, CgroupUnreadableError
from gpuguard.kernel import hierarchy
from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.kernel.hierarchy import Hierarchy
from gpuguard.model.container_group import ContainerGroup
from gpuguard.model.rule import Rule
from tests.kernel.groups import Groups, kernel_groups
from tests.lab import bpf

ID, OTHER, THIRD = "ab" * 32, "0c" * 32, "e7" * 32
SCOPE = f"/system.slice/docker-{ID}.scope"
PAYLOAD = f"/system.slice/llm.service/libpod-payload-{ID}"
POD = "/kubepods/burstable/pod8f3b2c1e-7d7a-4b8e-9e55-0c5a4be13a77"
MANAGER = "/user.slice/user-1000.slice/user@1000.service"
USER = 1000


class Top:
    """A directory of the kernel's that stands for the top of a hierarchy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.hierarchy = Hierarchy(root)
        self.asked: list[ContainerGroup] = []

    def make(self, *control_groups: str, owner: int = 0) -> None:
        """Make control groups and those above them, the last of each for an owner."""
        for group in control_groups:
            path = self.root / group[1:]
            path.mkdir(parents=True, exist_ok=True)
            os.chown(path, owner, owner)

    def found(self, *refused: str) -> set[str]:
        """Return what is yielded when nobody vouches for `refused`."""

        def contained(group: ContainerGroup, inode: int) -> bool:
            assert inode == self.hierarchy.inode(group.control_group)
            self.asked.append(group)
            return group.control_group not in refused

        found = dict(self.hierarchy.units(lambda name: name.startswith("docker-"), contained))
        assert all(inode == self.hierarchy.inode(group) for group, inode in found.items())
        return set(found)


@pytest.fixture(params=["v1", "v2"])
def top(request: pytest.FixtureRequest) -> Iterator[Top]:
    """Return an empty top, on each hierarchy in turn."""
    reason = bpf.why_not() if request.param == "v2" else None
    if reason is not None:
        pytest.skip(reason)
    with ExitStack() as stack:
        if request.param == "v2":
            yield Top(stack.enter_context(bpf.scratch()))
        else:
            groups = stack.enter_context(kernel_groups())
            yield Top(groups.path(groups.slice))


def test_all_ways_to_be_a_container(top: Top) -> None:
    """Scopes, containers that systemd does not know, and payloads of services are found in one walk."""
    containers = {
        SCOPE,
        PAYLOAD,
        f"/docker/{ID}",
        f"/default/{ID}",
        "/default/web.1",
        f"{POD}/{ID}",
        f"{POD}/crio-{OTHER}",
        f"/libpod_parent/libpod-{ID}",
        f"/libpod_parent/{OTHER}/libpod-{ID}",
        f"/my/own/parent/{ID}",
    }
    top.make(*containers, "/system.slice/cron.service", "/libpod_parent/conmon", "/docker/buildkit", "/init.scope")
    assert top.found() == containers - {f"/my/own/parent/{ID}"} | {"/my/own"}  # which looks like /NAMESPACE/ID
    assert top.found("/my/own") == containers
    assert SCOPE not in {group.control_group for group in top.asked}


def test_what_is_to_be_found_out(top: Top) -> None:
    """Until that is known what may be a container, and what may be in there if it is none, are both looked at."""
    inner = f"/my/own/{ID}"
    top.make(inner, PAYLOAD)
    assert set(dict(top.hierarchy.units(lambda _: False, lambda _, __: None))) == {"/my/own", inner, PAYLOAD}


def test_units_alone_where_nobody_asks_for_more(top: Top) -> None:
    """Without the second question only units are yielded."""
    top.make(SCOPE, PAYLOAD, f"/docker/{ID}")
    assert dict(top.hierarchy.units(lambda _: True)).keys() == {SCOPE, "/system.slice/llm.service"}


def test_who_is_refused_is_not_yielded(top: Top) -> None:
    """A name proves nothing."""
    top.make(PAYLOAD, f"/docker/{ID}", f"/docker/{OTHER}")
    assert top.found(PAYLOAD, f"/docker/{OTHER}") == {f"/docker/{ID}"}


@pytest.mark.parametrize(
    "look_alike",
    [
        f"{SCOPE}/docker/{OTHER}",
        f"{SCOPE}/libpod-payload-{OTHER}",
        f"{SCOPE}/system.slice/docker-{OTHER}.scope",
        f"{PAYLOAD}/{OTHER}",
        f"/docker/{ID}/{OTHER}",
        f"/docker/{ID}/docker/{OTHER}",
        f"/docker/{ID}/libpod-{OTHER}",
        f"/docker/{ID}/system.slice/docker-{OTHER}.scope",
        f"/default/web/{OTHER}",
        f"{POD}/{ID}/{OTHER}",
        f"/lxc.payload.a/docker/{OTHER}",
        f"/lxc/{OTHER}",
        f"/a/b/c/d/e/{OTHER}",
        f"/docker/x.slice/docker-{OTHER}.scope",
        f"/{OTHER}",
        f"/system.slice/{OTHER}",
        f"/system.slice/llm.service/x/libpod-payload-{OTHER}",
        f"{MANAGER}/libpod-payload-{OTHER}",
        f"{MANAGER}/app.slice/llm.service/libpod-payload-{OTHER}",
        f"{MANAGER}/docker/{OTHER}",
        f"{MANAGER}/user.slice/docker-{OTHER}.scope",
    ],
)
def test_what_is_inside_another_or_a_users(top: Top, look_alike: str) -> None:
    """Nested runtimes, systemd in a container, LXC's, user managers: what lies in there is never even asked about."""
    top.make(look_alike)
    found = top.found("/a/b")
    assert not any(OTHER in group for group in found)
    assert not any(OTHER in group.control_group for group in top.asked)


@pytest.mark.parametrize(
    ("above", "look_alike"),
    [
        ("/system.slice/llm.service", f"/system.slice/llm.service/libpod-payload-{OTHER}"),
        ("/mine", f"/mine/{OTHER}"),
        ("/mine/too", f"/mine/too/{OTHER}"),
    ],
)
def test_what_a_user_could_have_made(top: Top, above: str, look_alike: str) -> None:
    """What was handed to a user (Delegate= with User=) may hold what he likes: it is not looked into."""
    top.make(look_alike)
    assert top.found("/mine/too") == {look_alike}
    top.make(above, owner=USER)
    assert top.found("/mine/too") == set()
    top.make(above)
    for mode in (0o775, 0o757):
        (top.root / above[1:]).chmod(mode)
        assert top.found("/mine/too") == set()


def test_a_container_that_was_handed_to_its_user_is_one(top: Top) -> None:
    """With a user namespace the runtime gives the container its own group: only what is above tells."""
    top.make(PAYLOAD, f"/docker/{ID}", owner=USER)
    assert top.found() == {PAYLOAD, f"/docker/{ID}"}


@pytest.mark.invariant(10)
def test_directories_are_bounded(top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are, only so many are looked into."""
    monkeypatch.setattr(hierarchy, "MOST_DIRECTORIES", 4)
    top.make(*(f"/kubepods/pod{number}/{ID}" for number in range(8)))
    assert (len(top.found()), top.hierarchy.crowded) == (3, True)
    monkeypatch.setattr(hierarchy, "MOST_DIRECTORIES", 9)
    assert (len(top.found()), top.hierarchy.crowded) == (8, False)


@pytest.mark.invariant(10)
def test_directories_are_bounded_in_all(top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each one at the top; and who fills one of these with deep ones keeps nobody from the others."""
    monkeypatch.setattr(hierarchy, "MOST_DIRECTORIES", 4)
    top.make(*(f"/{name}/a{number}/b/c" for name in ("one", "two") for number in range(8)), f"/docker/{ID}")
    listed: list[str] = []
    entries = top.hierarchy._entries

    def listing(group: str) -> list[os.DirEntry[str]]:
        listed.append(group)
        return entries(group)

    monkeypatch.setattr(top.hierarchy, "_entries", listing)
    assert f"/docker/{ID}" in top.found(*(f"/{name}/a{number}" for name in ("one", "two") for number in range(8)))
    assert (len(listed), top.hierarchy.crowded) == (1 + 4, True)


def test_a_directory_that_has_just_gone(top: Top) -> None:
    """What ends while it is listed is passed over."""
    top.make(f"/docker/{ID}", PAYLOAD)

    class Vanishing(Hierarchy):
        """One in which directories are removed as soon as they were listed."""

        def _entries(self, group: str) -> list[os.DirEntry[str]]:
            entries = super()._entries(group)
            if not group:
                for path in (top.root / "docker" / ID, top.root / "docker"):
                    path.rmdir()
            return entries

    assert set(dict(Vanishing(top.root).units(lambda _: False, lambda _, __: True))) == {PAYLOAD}


def test_a_link_is_no_control_group(tmp_path: Path) -> None:
    """On cgroupfs there are none; where there is one, nothing is opened behind it."""
    (tmp_path / "real.scope").mkdir()
    (tmp_path / "link.scope").symlink_to("real.scope")
    with pytest.raises(CgroupGoneError):
        Hierarchy(tmp_path).inode("/link.scope")


@pytest.fixture
def written() -> Iterator[Groups]:
    """Return groups on the kernel's v1 hierarchy, with the slice as its top."""
    with kernel_groups() as groups:
        inner = Groups(groups.path(groups.slice), "/system.slice")
        inner.devices = DevicesV1(inner.root)
        yield inner


@pytest.mark.invariant(6)
def test_what_is_written(written: Groups) -> None:
    """A container without a unit and a payload are written; nothing above them is, nor a group of another inode."""
    gpu = Rule.parse("c 195:0 rw")
    for group in (PAYLOAD, f"/docker/{ID}", f"{POD}/{ID}"):
        written.path(group).mkdir(parents=True)
        inode = written.make(group)
        written.devices.allow(group, inode, gpu)
        assert written.lines(group) == ["c 195:0 rw"]
        with pytest.raises(CgroupGoneError, match="taken this name"):
            written.devices.allow(group, inode + 1, gpu)
    for group in ("/system.slice", "/docker", POD, "/kubepods/burstable", "/"):
        with pytest.raises(CgroupUnreadableError, match="not a scope and no container"):
            written.devices.allow(group, written.inode(group), gpu)
