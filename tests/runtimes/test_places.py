"""Places where runtimes keep what they know of a container."""

from __future__ import annotations

import pytest

from gpuguard.runtimes.places import usable_id


@pytest.mark.parametrize(
    ("container_id", "usable"), [("a.b", True), ("a..b", False), ("a" * 255, True), ("a" * 256, False)]
)
def test_ids_that_can_be_a_file_s_name(container_id: str, usable: bool) -> None:
    """One name, and nothing that could lead elsewhere."""
    assert usable_id(container_id) is usable
