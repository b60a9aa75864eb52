"""What people call a container."""

from __future__ import annotations

from typing import Optional

import pytest

from gpuguard.model.container_name import full_name, short_id


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (("ml", "train-0", "main"), "ml/train-0/main"),
        ((None, None, "trainer"), "trainer"),
        (("ml", "train-0", None), "ml/train-0"),
        ((None, "", None), ""),
    ],
)
def test_full_name(parts: tuple[Optional[str], Optional[str], Optional[str]], name: str) -> None:
    """In Kubernetes the name has three parts; what is not known leaves no empty part behind."""
    assert full_name(*parts) == name


@pytest.mark.parametrize(
    ("cid", "short"),
    [("3f2a9c81b2d4" + "0" * 52, "3f2a9c81b2d4"), ("text-generation.service", "text-generation.service")],
)
def test_short_id(cid: str, short: str) -> None:
    """12 digits of an id that was generated, all of one that somebody chose."""
    assert short_id(cid) == short
