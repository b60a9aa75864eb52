"""Times and sizes as people write them, "250ms" and "64MiB". Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from gpuguard.errors import ConfigError

_MILLISECONDS: Mapping[str, int] = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}
_BYTES: Mapping[str, int] = {"TiB": 1 << 40, "GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10, "B": 1}
# Bounded, so that a hostile file cannot ask for arithmetic on a million digits.
_QUANTITY = re.compile(r"(\d{1,15}(?:\.\d{1,9})?) ?([A-Za-z]+)", re.ASCII)


def parse_duration(text: str) -> float:
    """Read a time such as "5s", "250ms", "1.5h" or "30d"; return seconds. Raises ConfigError."""
    return _parse(text, _MILLISECONDS, "a time", "5s", "ms") / 1000


def spell_duration(seconds: float) -> str:
    """Return the shortest exact text that parse_duration reads back, e.g. "1m" for 60.0."""
    return _spell(round(seconds * 1000), _MILLISECONDS, "s")


def parse_size(text: str) -> int:
    """Read a size such as "64MiB"; return bytes. Raises ConfigError."""
    return _parse(text, _BYTES, "a size", "64MiB", "B")


def spell_size(size: int) -> str:
    """Return the shortest exact text that parse_size reads back."""
    return _spell(size, _BYTES, "B")


def _parse(text: str, units: Mapping[str, int], what: str, example: str, smallest: str) -> int:
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2] not in units:
        raise ConfigError(f'want {what} with its unit ({", ".join(reversed([*units]))}), e.g. "{example}"')
    amount = Fraction(match[1]) * units[match[2]]
    if amount.denominator != 1:
        raise ConfigError(f"want {what} in whole {smallest}")
    return int(amount)


def _spell(amount: int, units: Mapping[str, int], unit_of_zero: str) -> str:
    if amount == 0:
        return f"0{unit_of_zero}"
    unit, factor = next((unit, factor) for unit, factor in units.items() if amount % factor == 0)
    return f"{amount // factor}{unit}"
