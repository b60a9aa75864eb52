"""Pathnames."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.pathname import NO_NAMES, shortest, within

PATHS = st.lists(st.sampled_from(["a", "b", "ab", "", ".", ".."]), max_size=6).map(lambda names: "/" + "/".join(names))


@pytest.mark.parametrize(
    ("path", "directory", "inside"),
    [
        ("/a/b", "/a/b", True),
        ("/a/b/c", "/a/b", True),
        ("/a/bc", "/a/b", False),
        ("/a", "/a/b", False),
        ("/a/b", "/", True),
        ("/", "/", True),
        ("/", "/a", False),
        ("", "/a", False),
    ],
)
def test_within(path: str, directory: str, inside: bool) -> None:
    """It, and what is below it; a name that begins alike is another one's."""
    assert within(path, directory) is inside


@pytest.mark.parametrize(
    ("path", "cleaned"),
    [("", "."), ("/", "/"), ("//", "/"), ("//a//b/", "/a/b"), ("/a/./b/../c", "/a/c"), ("/../a", "/a"), ("a/..", ".")],
)
def test_shortest(path: str, cleaned: str) -> None:
    """Without slashes and dots that say nothing; nothing is above the root, and nothing at all is here."""
    assert shortest(path) == cleaned


@given(PATHS)
def test_nothing_is_left_to_clean(path: str) -> None:
    """Each name is one, and cleaning it again changes nothing."""
    cleaned = shortest(path)
    assert cleaned == "/" or NO_NAMES.isdisjoint(cleaned[1:].split("/"))
    assert shortest(cleaned) == cleaned
    assert within(cleaned, "/")
