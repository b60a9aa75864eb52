"""Kinds of setting: each checks one TOML value, says what it wants, and spells it back. Pure."""

from __future__ import annotations

import difflib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuguard.errors import ConfigError
from gpuguard.model.quantity import parse_duration, parse_size, spell_duration, spell_size

T = TypeVar("T")


class Kind(ABC, Generic[T]):
    """One kind of setting."""

    @abstractmethod
    def check(self, value: object) -> T:
        """Return the typed value. Raises ConfigError, whose text begins with "want"."""

    @abstractmethod
    def spell(self, value: T) -> str:
        """Return the value as TOML, so that check reads the same again."""


@dataclass(frozen=True)
class Flag(Kind[bool]):
    """True or false."""

    def check(self, value: object) -> bool:
        """Check one value. Raises ConfigError."""
        if not isinstance(value, bool):
            raise ConfigError("want true or false, without quotes")
        return value

    def spell(self, value: bool) -> str:  # noqa: FBT001 - the value is the subject here
        """Return the value as TOML."""
        return "true" if value else "false"


@dataclass(frozen=True)
class Count(Kind[int]):
    """A whole number."""

    low: int
    high: int

    def check(self, value: object) -> int:
        """Check one value. Raises ConfigError."""
        # To Python, true is an int.
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            raise ConfigError(f"want a whole number from {self.low} to {self.high}, without quotes")
        return value

    def spell(self, value: int) -> str:
        """Return the value as TOML."""
        return str(value)


@dataclass(frozen=True)
class Duration(Kind[float]):
    """A time with its unit; the value is in seconds."""

    low: str
    high: str

    def check(self, value: object) -> float:
        """Check one value. Raises ConfigError."""
        seconds = parse_duration(value if isinstance(value, str) else "")
        if not parse_duration(self.low) <= seconds <= parse_duration(self.high):
            raise ConfigError(f"want a time from {self.low} to {self.high}")
        return seconds

    def spell(self, value: float) -> str:
        """Return the value as TOML."""
        return _quote(spell_duration(value))


@dataclass(frozen=True)
class Size(Kind[int]):
    """An amount of storage with its unit; the value is in bytes."""

    low: str
    high: str

    def check(self, value: object) -> int:
        """Check one value. Raises ConfigError."""
        size = parse_size(value if isinstance(value, str) else "")
        if not parse_size(self.low) <= size <= parse_size(self.high):
            raise ConfigError(f"want a size from {self.low} to {self.high}")
        return size

    def spell(self, value: int) -> str:
        """Return the value as TOML."""
        return _quote(spell_size(value))


@dataclass(frozen=True)
class Choice(Kind[str]):
    """One of a few words."""

    options: tuple[str, ...]

    def check(self, value: object) -> str:
        """Check one value. Raises ConfigError."""
        if not isinstance(value, str) or value not in self.options:
            near = near_miss(value, self.options)
            hint = f"; did you mean {_quote(near)}?" if near else ""
            raise ConfigError(f"want {one_of(map(_quote, self.options))}{hint}")
        return value

    def spell(self, value: str) -> str:
        """Return the value as TOML."""
        return _quote(value)


@dataclass(frozen=True)
class Text(Kind[str]):
    """A text that matches `pattern` as a whole; `want` says in words what that is."""

    pattern: str
    want: str

    def check(self, value: object) -> str:
        """Check one value. Raises ConfigError."""
        if not isinstance(value, str) or not value.isprintable() or not re.fullmatch(self.pattern, value, re.ASCII):
            raise ConfigError(f"want {self.want}")
        return value

    def spell(self, value: str) -> str:
        """Return the value as TOML."""
        return _quote(value)


@dataclass(frozen=True)
class ListOf(Kind[tuple[T, ...]]):
    """A list of one kind of thing."""

    of: Kind[T]

    def check(self, value: object) -> tuple[T, ...]:
        """Check one value. Raises ConfigError, for the first wrong entry."""
        if not isinstance(value, list):
            raise ConfigError("want a list, e.g. [] or [ … ]")
        return tuple(self._entry(place, entry) for place, entry in enumerate(value, start=1))

    def spell(self, value: tuple[T, ...]) -> str:
        """Return the value as TOML."""
        return f"[{', '.join(map(self.of.spell, value))}]"

    def _entry(self, place: int, entry: object) -> T:
        try:
            return self.of.check(entry)
        except ConfigError as fault:
            raise ConfigError(f"entry {place}: {fault}") from fault


def one_of(words: Iterable[str]) -> str:
    """Return "a", "a or b", "a, b or c"."""
    *others, last = words
    return f"{', '.join(others)} or {last}" if others else last


def near_miss(value: object, known: Iterable[str]) -> str:
    """Return the known word that `value` was probably meant to be, or ""."""
    return next(iter(difflib.get_close_matches(str(value)[:80], list(known), n=1)), "")


def _quote(text: str) -> str:
    # A JSON string of printable characters is a TOML basic string.
    return json.dumps(text, ensure_ascii=False)
