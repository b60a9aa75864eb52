"""JSON whose author is not trusted: read with its types checked, and every complaint says where. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn, Optional

from gpuguard.errors import SpecError

# A specification has some ten thousand characters; an environment may have two million.
MAX_CHARACTERS = 1 << 22
# Of a name that is told in a complaint.
_SHOWN = 40
# 64 bits, with a sign. Python takes long for very long ones.
_MAX_DIGITS = 20
# A user may choose some hundred thousand strings: no place is made up for each that is one.
_STRING = frozenset({str})


@dataclass(frozen=True)
class Value:
    """One value and its place, such as "linux.devices[2]". A null is as good as none at all, as it is for Go."""

    value: object
    place: str = ""

    @property
    def absent(self) -> bool:
        """Whether there is nothing here."""
        return self.value is None

    def member(self, name: str) -> Value:
        """Return the member of an object, an absent value for none. Raises SpecError where this is no object."""
        if self.value is None:
            return Value(None, self._at(name))
        if not isinstance(self.value, dict):
            self.refuse("an object")
        return Value(self.value.get(name), self._at(name))

    def members(self) -> Iterator[tuple[str, Value]]:
        """Yield the members of an object, none where there is nothing. Raises SpecError."""
        if self.value is None:
            return
        if not isinstance(self.value, dict):
            self.refuse("an object")
        for name, value in self.value.items():
            yield name, Value(value, self._at(name))

    def items(self) -> Iterator[Value]:
        """Yield the items of a list, none where there is nothing. Raises SpecError."""
        if self.value is None:
            return
        if not isinstance(self.value, list):
            self.refuse("a list")
        for number, value in enumerate(self.value):
            yield Value(value, f"{self.place}[{number}]")

    def text(self) -> str:
        """Return a string, "" where there is nothing. Raises SpecError."""
        if self.value is None:
            return ""
        if not isinstance(self.value, str):
            self.refuse("a string")
        return self.value

    def texts(self) -> tuple[str, ...]:
        """Return a list of strings. Raises SpecError."""
        if isinstance(self.value, list) and _STRING.issuperset(map(type, self.value)):
            return tuple(self.value)
        return tuple(item.text() for item in self.items())

    def strings(self) -> dict[str, str]:
        """Return an object of strings. Raises SpecError."""
        if isinstance(self.value, dict) and _STRING.issuperset(map(type, self.value.values())):
            return dict(self.value)
        return {name: value.text() for name, value in self.members()}

    def flag(self) -> bool:
        """Return true or false, which is also what is not there. Raises SpecError."""
        if self.value is None:
            return False
        if not isinstance(self.value, bool):
            self.refuse("true or false")
        return self.value

    def number(self) -> Optional[int]:
        """Return a whole number, None where there is nothing. Raises SpecError, also on 1.0, which Go does not take."""
        if self.value is None:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int):
            self.refuse("a whole number")
        return self.value

    def refuse(self, wanted: str) -> NoReturn:
        """Raise SpecError: this is not what was wanted."""
        raise SpecError(f"{self.place or 'the text'}: want {wanted}")

    def _at(self, name: str) -> str:
        shown = name if len(name) <= _SHOWN and name.isprintable() else ascii(name[:_SHOWN])
        return f"{self.place}.{shown}" if self.place else shown


def parse_json(text: str) -> Value:
    """Read a JSON text. Raises SpecError.

    Refused are also NaN and infinities, and an object that has two members of one name: readers differ in which counts.
    """
    if len(text) > MAX_CHARACTERS:
        raise SpecError(f"not read: it has more than {MAX_CHARACTERS} characters")
    try:
        return Value(json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_constant=_constant))
    except ValueError as error:
        raise SpecError(f"not JSON: {error}") from error
    except RecursionError as error:
        raise SpecError("not read: it is nested too deeply") from error


@contextmanager
def said_of(path: str) -> Iterator[None]:
    """Put a file's path before what is said of its text: before the message of a SpecError."""
    try:
        yield
    except SpecError as error:
        raise SpecError(f"{path}: {error}") from error


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members: dict[str, object] = {}
    for name, value in pairs:
        if name in members:
            raise SpecError(f"an object has {name[:_SHOWN]!a} twice")
        members[name] = value
    return members


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise SpecError(f"a number of {len(digits)} digits")
    return int(digits)


def _constant(name: str) -> NoReturn:
    raise SpecError(f"{name} is not a number of JSON")
