"""Device cgroups for the tests of this package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kernel.groups import Groups, kernel_groups, plain_groups


@pytest.fixture
def kernel() -> Iterator[Groups]:
    """Return a slice on the kernel's v1 devices hierarchy."""
    with kernel_groups() as groups:
        yield groups


@pytest.fixture
def tree(tmp_path: Path) -> Groups:
    """Return a tree of plain files that looks like the hierarchy."""
    return plain_groups(tmp_path)
