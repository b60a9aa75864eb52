"""Which control group a specification means."""

from __future__ import annotations

from typing import Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.cgroups_path import control_group, slice_path


@pytest.mark.parametrize(
    ("cgroups_path", "wanted"),
    [
        ("system.slice:docker:abc", "/system.slice/docker-abc.scope"),
        (":docker:abc", "/system.slice/docker-abc.scope"),
        (
            "kubepods-burstable-pod1_2.slice:cri-containerd:abc",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-abc.scope",
        ),
        ("-.slice:x:abc", "/x-abc.scope"),
        ("machine.slice:x:my.slice", "/machine.slice/my.slice"),
        ("/docker/abc", "/docker/abc"),
        ("/a:b:c", "/a:b:c"),
        ("/a/../b", None),
        ("", None),
        ("docker/abc", None),
        ("a:b", None),
        ("a.slice:b:c:d", None),
        ("a:b:c", None),
        ("a/b.slice:c:d", None),
        ("a--b.slice:c:d", None),
        ("system.slice:../../x:y", None),
    ],
)
def test_control_group(cgroups_path: str, wanted: Optional[str]) -> None:
    """Both forms that runtimes take, and nothing else."""
    assert control_group(cgroups_path) == wanted


@pytest.mark.parametrize(
    "name", ["", ".slice", "a", "abcdefghij", "a-.slice", "-a.slice", "--.slice", "a.slice/b.slice"]
)
def test_what_is_no_slice(name: str) -> None:
    """A slice's name has a word between all dashes."""
    assert slice_path(name) is None


@given(st.text() | st.text(alphabet=":/.-abslice"))
def test_any_text(text: str) -> None:
    """Whatever comes out is an absolute path that leads down only."""
    found = control_group(text)
    assert found is None or (found.startswith("/") and ".." not in found.split("/"))
