"""Which control groups are containers, by their names alone."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpuguard.model.container_group import (
    MOST_LEVELS,
    may_be_written,
    may_hold_containers,
    may_hold_payloads,
    parse,
)

ID, OTHER = "ab" * 32, "0c" * 32
PODS = "/kubepods/burstable/pod8f3b2c1e-7d7a-4b8e-9e55-0c5a4be13a77"
SCOPE = f"docker-{ID}.scope"
PAYLOAD = f"libpod-payload-{ID}"
MANAGER = "/user.slice/user-1000.slice/user@1000.service"

# What paths are made of: real names, look-alikes, and what is no name at all.
NAMES = st.sampled_from(
    [
        *(
            "docker",
            "kubepods",
            "burstable",
            "besteffort",
            "libpod_parent",
            "default",
            "k8s.io",
            "lxc",
            "lxc.payload.a",
        ),
        *("system.slice", "user.slice", "user@1000.service", "a.service", "init.scope", "podab-1", "conmon", "a.mount"),
        *(ID, OTHER, SCOPE, PAYLOAD, f"libpod-{ID}", f"crio-{ID}", f"crio-conmon-{ID}", f"libpod-payload-{ID[1:]}"),
        *("", ".", "..", "a b", "a\nb", "a\0b", f"{ID}\n", ID.upper(), "x" * 77),
    ]
) | st.text(max_size=4)
PATHS = st.lists(NAMES, max_size=7).map(lambda names: "/" + "/".join(names)) | st.text(max_size=8)


@pytest.mark.parametrize(
    ("control_group", "runtime", "container"),
    [
        (f"/docker/{ID}", "docker", ID),
        (f"/my/own/parent/{ID}", "docker", ID),
        (f"/default/{ID}", "containerd", ID),
        ("/default/web.1", "containerd", "web.1"),
        (f"/k8s.io/{ID}", "containerd", ID),
        (f"{PODS}/{ID}", "containerd", ID),
        (f"/kubepods/pod0123456789abcdef0123456789abcdef/{ID}", "containerd", ID),
        (f"/kubepods/besteffort/pod1-2/crio-{ID}", "cri-o", ID),
        (f"/root{PODS}/{ID}", "containerd", ID),
        (f"/libpod_parent/libpod-{ID}", "podman", ID),
        (f"/libpod_parent/{OTHER}/libpod-{ID}", "podman", ID),
        (f"/mine/libpod-{ID}", "podman", ID),
    ],
)
def test_without_a_unit(control_group: str, runtime: str, container: str) -> None:
    """Each runtime's cgroupfs driver has its own place; systemd knows no unit there, and the name proves nothing."""
    found = parse(control_group)
    assert found is not None
    assert (found.container.runtime, found.container.id) == (runtime, container)
    assert (found.unit, found.unit_group, found.vouched) == (control_group.rpartition("/")[2], None, True)


@pytest.mark.parametrize("unit", ["/system.slice/llm.service", "/a.slice/a-b.slice/run-r1.scope", "/llm@1.service"])
def test_below_a_unit(unit: str) -> None:
    """A payload of Podman's is guarded through the unit that it is directly below."""
    found = parse(f"{unit}/{PAYLOAD}")
    assert found is not None
    assert (found.container.runtime, found.container.id, found.vouched) == ("podman", ID, True)
    assert (found.unit, found.unit_group) == (unit.rpartition("/")[2], unit)


def test_a_scope_of_its_own() -> None:
    """A container's scope is systemd's word: nobody need vouch for it."""
    found = parse(f"/system.slice/{SCOPE}")
    assert found is not None
    assert (found.unit, found.unit_group, found.vouched) == (SCOPE, f"/system.slice/{SCOPE}", False)


@pytest.mark.parametrize(
    "control_group",
    [
        "/",
        "",
        f"docker/{ID}",
        f"/{ID}",
        f"/{SCOPE[:-6]}",
        "/docker",
        "/docker/buildkit",
        f"/docker/{ID[:-1]}",
        f"/docker/{ID.upper()}",
        f"/docker/{ID}\n",
        f"/docker/{ID}/",
        f"/docker/../{ID}",
        f"/docker//{ID}",
        f"/docker/./{ID}",
        f"/docker/{ID}\0",
        f"/docker/{OTHER}/{ID}",
        f"/docker/{OTHER}/docker/{ID}",
        f"/docker/{OTHER}/libpod-{ID}",
        f"/a/b/c/d/e/{ID}",
        "/kubepods/burstable",
        PODS,
        f"/kubepods/{ID}",
        f"/kubepods/other/pod1/{ID}",
        f"{PODS}/web",
        f"{PODS}/crio-conmon-{ID}",
        f"{PODS}/{OTHER}/{ID}",
        f"/default/web/{ID}/x",
        f"/libpod_parent/{ID}",
        "/libpod_parent/conmon",
        f"/libpod_parent/libpod-conmon-{ID}",
        f"/libpod_parent/libpod-{OTHER}/libpod-{ID}",
        f"/lxc/{ID}",
        f"/lxc.payload.a/docker/{ID}",
        f"/system.slice/{ID}",
        f"/system.slice/docker/{ID}",
        f"/docker/system.slice/{SCOPE}",
        f"/docker/{ID}.scope",
        f"/default/{'x' * 77}",
        "/default/-web",
        "/default/a..b",
        f"{MANAGER}/{PAYLOAD}",
        f"{MANAGER}/app.slice/llm.service/{PAYLOAD}",
        f"{MANAGER}/user.slice/{SCOPE}",
        f"{MANAGER}/docker/{ID}",
        f"/system.slice/{SCOPE}/{PAYLOAD}",
        f"/system.slice/{SCOPE}/system.slice/llm.service/{PAYLOAD}",
        f"/system.slice/llm.service/x/{PAYLOAD}",
        f"/system.slice/llm.service/{PAYLOAD}/x",
        "/system.slice/llm.service",
        "/system.slice/run-r1.scope",
        "/docker.slice/docker.service",
        f"/kubepods/burstable/8f3b/{ID}",
        f"/kubepods/burstable/pod1/pod2/{ID}",
        "/not a namespace/web",
        f"x/docker/{ID}",
        f"/docker\0/{ID}",
        f"/system.slice/llm.service/libpod-{ID}",
        "/system.slice/llm.service/runtime",
        f"/system.slice/{PAYLOAD}",
        f"/docker/{PAYLOAD}",
    ],
)
def test_what_is_none(control_group: str) -> None:
    """Neither what holds containers nor what is inside one, nor look-alikes, nor what is no path."""
    assert parse(control_group) is None


@given(PATHS)
@example(f"/docker/{ID}/system.slice")
def test_what_holds_of_all(control_group: str) -> None:
    """What is a container is no slice, nor at the top; what is in it, or above it, is none, nor are a user's."""
    found = parse(control_group)
    if found is None:
        return
    names = control_group.split("/")[1:]
    assert found.control_group == control_group
    assert not names[-1].endswith(".slice")
    assert not {"", ".", ".."}.intersection(names)
    assert not any(name.startswith("user@") for name in names[:-1])
    assert found.vouched is (found.unit_group != control_group)
    if found.unit_group is None:
        assert 1 < len(names) <= MOST_LEVELS
        assert not any(name.endswith((".slice", ".scope", ".service")) for name in names)
    else:
        assert control_group.startswith(found.unit_group)
        assert all(name.endswith(".slice") for name in found.unit_group.split("/")[1:-1])


@given(PATHS, st.lists(NAMES, min_size=1, max_size=3))
def test_nothing_inside_one_is_one(control_group: str, below: list[str]) -> None:
    """A nested runtime's containers, and whatever a container makes, are its own."""
    found = parse(control_group)
    if found is not None and found.container.id == ID:
        assert parse("/".join([control_group, *below])) is None
        assert not may_hold_containers(control_group)


@pytest.mark.invariant(6)
@given(PATHS)
def test_what_may_be_written(control_group: str) -> None:
    """A container may; a slice, the root, what is at the top, or what holds containers without a unit may not."""
    names = control_group.split("/")[1:]
    if parse(control_group) is not None:
        assert may_be_written(control_group)
    elif not any(name.endswith((".scope", ".service")) for name in names):
        assert not may_be_written(control_group)
    if control_group.endswith(".slice") or {"", ".", ".."}.intersection(names):
        assert not may_be_written(control_group)


@pytest.mark.invariant(6)
@pytest.mark.parametrize(
    ("control_group", "may"),
    [
        (f"/system.slice/{SCOPE}", True),
        (f"/system.slice/{SCOPE}/container", True),
        ("/system.slice/ollama.service", True),
        (f"/system.slice/llm.service/{PAYLOAD}", True),
        (f"{PODS}/{ID}", True),
        ("/", False),
        ("/system.slice", False),
        (f"/system.slice/{SCOPE}/system.slice", False),
        ("/docker", False),
        (f"/{ID}", False),
        ("/kubepods", False),
        ("/kubepods/burstable", False),
        (PODS, False),
        (f"/libpod_parent/{OTHER}", False),
        (f"/docker/{ID}/{OTHER}", False),
        (f"/docker/{ID}/llm.service", False),
        (f"{MANAGER}/app.slice/llm.service", False),
        (f"/system.slice/../docker/{ID}", False),
    ],
)
def test_where_is_written(control_group: str, may: bool) -> None:
    """Exactly: a unit and what is below it, and a container without a unit."""
    assert may_be_written(control_group) is may


@pytest.mark.parametrize(
    ("unit", "may"),
    [
        ("llm.service", True),
        ("session-3.scope", True),
        ("user@1000.service", False),
        (SCOPE, False),
        (f"libpod-{ID}.scope", False),
    ],
)
def test_what_may_hold_payloads(unit: str, may: Optional[bool]) -> None:
    """A container's scope holds only what is its own, a user manager what is its user's."""
    assert may_hold_payloads(unit) is may


@pytest.mark.parametrize(
    ("control_group", "may"),
    [
        ("/docker", True),
        ("/kubepods/burstable", True),
        (PODS, True),
        (f"/libpod_parent/{OTHER}", True),
        (f"/docker/{ID}", False),
        ("/lxc", False),
        ("/lxc.payload.a", False),
        ("/a/b/c/d/e", False),
        ("/system.slice", False),
        ("/", False),
    ],
)
def test_what_may_hold_containers(control_group: str, may: bool) -> None:
    """What is looked into for containers without a unit."""
    assert may_hold_containers(control_group) is may
