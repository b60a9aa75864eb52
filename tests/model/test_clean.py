"""Text from outside, made fit for labels and messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.clean import LIMIT, clean


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("trainer-1", "trainer-1"),
        ("Schülerin 日本", "Schülerin 日本"),
        ("a\nb\0c", "a\ufffdb\ufffdc"),
        ("\x1b[31mred", "\ufffd[31mred"),
        ("bad \udc80 byte", "bad \ufffd byte"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("x" * 500, "x" * LIMIT),
    ],
)
def test_clean(text: str, cleaned: str) -> None:
    """Only printable text comes out, no longer than the limit."""
    assert clean(text) == cleaned


@given(st.text(st.characters(exclude_categories=[])))
def test_clean_is_always_fit(text: str) -> None:
    """Whatever goes in, what comes out is printable, UTF-8 and bounded; cleaning it again changes nothing."""
    cleaned = clean(text)
    cleaned.encode()
    assert cleaned.isprintable()
    assert len(cleaned) <= LIMIT
    assert clean(cleaned) == cleaned
