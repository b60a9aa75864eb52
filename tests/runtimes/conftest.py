"""Fixtures for the runtimes' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runtimes.tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Return an empty tree of a host's files."""
    return Tree(tmp_path)
