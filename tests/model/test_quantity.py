"""Times and sizes as people write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.errors import ConfigError
from gpuguard.model.quantity import parse_duration, parse_size, spell_duration, spell_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("5s", 5.0), ("1m", 60.0), ("2h", 7200.0), ("30d", 2_592_000.0), ("1.5s", 1.5), ("0s", 0.0)],
)
def test_a_time_is_seconds(text: str, seconds: float) -> None:
    """Every unit is read as its number of seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "size"), [("0B", 0), ("1KiB", 1024), ("64MiB", 1 << 26), ("0.5GiB", 1 << 29)])
def test_a_size_is_bytes(text: str, size: int) -> None:
    """Every unit is read as its number of bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5", "s", "5 seconds", "5S", "5s ", "1m30s", "-5s", "+5s", "1e3s", "٣s", "5MiB"])
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    """A number without its unit, an unknown unit, signs and foreign digits are errors."""
    with pytest.raises(ConfigError, match="want a time"):
        parse_duration(text)


@given(st.integers(0, 10**14))
def test_a_time_is_spelt_so_that_it_reads_the_same(milliseconds: int) -> None:
    """No millisecond is lost on the way to text and back."""
    assert parse_duration(spell_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.integers(0, 10**14))
def test_a_size_is_spelt_so_that_it_reads_the_same(size: int) -> None:
    """No byte is lost on the way to text and back."""
    assert parse_size(spell_size(size)) == size


@given(st.text())
def test_any_text_is_a_time_or_a_clear_error(text: str) -> None:
    """Nothing but ConfigError comes out of a wrong text."""
    with contextlib.suppress(ConfigError):
        parse_duration(text)
