"""Text from outside, made fit for labels and messages."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.report.clean import LIMIT, Capped, clean


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


def test_capped() -> None:
    """Beyond the cap a new value is "other"; those known before keep their names."""
    capped = Capped(2)
    assert [capped(text) for text in ("runc", "systemd", "bash", "runc", "zsh")] == [
        "runc",
        "systemd",
        "other",
        "runc",
        "other",
    ]


def test_capped_without_a_value() -> None:
    """No value, and an empty one, are "unknown"."""
    capped = Capped(2)
    assert capped(None) == capped("") == "unknown"
