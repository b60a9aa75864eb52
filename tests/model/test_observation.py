"""What counts as declared."""

from __future__ import annotations

import pytest

from gpuguard.model.rule import Rule
from tests.model.looks import declaration

GPU = Rule.parse("c 1:0 rw")


@pytest.mark.parametrize(
    ("memory", "disk", "covered"),
    [
        (["/dev/char/1:0 rw"], None, True),
        (["/dev/char/1:0 rw"], ["c 1:* rwm"], True),
        (["/dev/char/1:0 rw"], [], False),
        ([], ["c 1:0 rw"], False),
        (["/dev/char/1:0 r"], None, False),
    ],
)
def test_declared_is_what_memory_and_disk_both_say(memory: list[str], disk: list[str], covered: bool) -> None:
    """A property change writes what systemd has in memory, a reload what is on disk: both must have the rule."""
    assert declaration(*memory, disk=disk).covers(GPU) is covered
