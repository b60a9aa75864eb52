"""Which scopes are containers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.scope_name import ContainerScope

ID = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("unit", "runtime"),
    [
        (f"docker-{ID}.scope", "docker"),
        (f"libpod-{ID}.scope", "podman"),
        (f"crio-{ID}.scope", "cri-o"),
        (f"cri-containerd-{ID}.scope", "containerd"),
        (f"nerdctl-{ID}.scope", "nerdctl"),
    ],
)
def test_the_runtimes_scopes(unit: str, runtime: str) -> None:
    """Each runtime's scope gives the runtime and the container's id."""
    assert ContainerScope.parse(unit) == ContainerScope(runtime, ID)


@pytest.mark.parametrize(
    ("unit", "name"),
    [
        ("machine-box.scope", "box"),
        (r"machine-my\x2dgpu.box1.scope", "my-gpu.box1"),
        (r"machine-qemu\x2d1\x2dvm.scope", "qemu-1-vm"),
    ],
)
def test_machines(unit: str, name: str) -> None:
    """A machine's scope gives its name unescaped; that it may be a virtual machine is for others to find out."""
    assert ContainerScope.parse(unit) == ContainerScope("nspawn", name)


@pytest.mark.parametrize("name", ["gpu1", "gpu-test.2_b", "a" * 76])
def test_containerd_s_clients_choose_their_ids(name: str) -> None:
    """An id that containerd accepts is an id here, too."""
    assert ContainerScope.parse(f"cri-containerd-{name}.scope") == ContainerScope("containerd", name)


@pytest.mark.parametrize(
    "unit",
    [
        "",
        ".scope",
        "init.scope",
        "session-1.scope",
        f"docker-{ID}.service",
        f"docker-{ID}",
        f"docker-{ID}.scope\n",
        f"docker-{ID}.scope.scope",
        f"docker-{ID[:-1]}.scope",
        f"docker-{ID}0.scope",
        f"docker-{ID.upper()}.scope",
        f"docker-buildkit-{ID}.scope",
        f"docker-{ID}-exec.scope",
        f"docker\\x2d{ID}.scope",
        f"Docker-{ID}.scope",
        f"xdocker-{ID}.scope",
        f"libpod-conmon-{ID}.scope",
        f"libpod-payload-{ID}.scope",
        f"crio-conmon-{ID}.scope",
        f"crio-{ID}-exec.scope",
        f"cri-containerd-conmon-{ID}.scope",
        f"cri-containerd-{ID}-exec.scope",
        "cri-containerd-.scope",
        "cri-containerd--a.scope",
        "cri-containerd-a/b.scope",
        "cri-containerd-../x.scope",
        "cri-containerd-a b.scope",
        "cri-containerd-a\\x2fb.scope",
        "cri-containerd-é.scope",
        f"cri-containerd-{'a' * 77}.scope",
        "nerdctl-\x00.scope",
        "machine-.scope",
        "machine-a-b.scope",
        "machine-..scope",
        r"machine-a\x2fb.scope",
        r"machine-\x2e\x2e.scope",
        r"machine-\x2da.scope",
        r"machine-a\x0ab.scope",
        r"machine-a\x00.scope",
        f"machine-{'a' * 65}.scope",
        "machine-a.service",
    ],
)
def test_what_is_no_container(unit: str) -> None:
    """Monitors, exec sessions, builds, escapes and malformed names are no containers."""
    assert ContainerScope.parse(unit) is None


@given(st.text())
def test_any_text_is_taken(text: str) -> None:
    """No name makes the parser fail, and an id holds nothing that could lead out of a directory."""
    for unit in (text, f"nerdctl-{text}.scope", f"machine-{text}.scope"):
        scope = ContainerScope.parse(unit)
        assert scope is None or ("/" not in scope.id and ".." not in scope.id)
