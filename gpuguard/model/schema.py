"""Dataclasses as TOML tables: fields that carry their check, reading with all faults at once, writing. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import Field, field, fields
from typing import Any, TypeVar, Union

from gpuguard.errors import ConfigError
from gpuguard.model.setting import Kind, near_miss, one_of

T = TypeVar("T")


def setting(default: T, kind: Kind[T]) -> T:
    """Declare a field that is one TOML value. A field whose default is a Table is a table by that alone."""
    return field(default=default, metadata={"kind": kind})


def rows(cls: type[T]) -> tuple[T, ...]:
    """Declare a field that is an array of tables, each read into `cls`."""
    return field(default=(), metadata={"rows": cls})


class Table:
    """What a settings dataclass inherits: it may have faults that no field has alone."""

    def faults(self) -> Iterator[str]:
        """Yield what is wrong between the fields, each text beginning with the keys."""
        return iter(())


S = TypeVar("S", bound=Table)


def read(cls: type[S], mapping: Mapping[str, object], faults: list[str], where: str = "") -> S:
    """Build `cls` from a parsed TOML table whose header is `where` ("" for the file itself).

    What is wrong is appended to `faults`, with table and key; only without any is the result of use.
    """
    known = _fields(cls)
    place = f"{where} " if where else ""
    values: dict[str, Any] = {}
    before = len(faults)
    for key, value in mapping.items():
        if key not in known:
            faults.append(f"{place}{key}: unknown key; {_advice(key, where, known)}")
            continue
        try:
            values[key] = _value(known[key], value, faults, where)
        except ConfigError as fault:
            faults.append(f"{place}{key} = {_excerpt(value)}: {fault}")
    settings = cls(**values)
    if len(faults) == before:
        faults.extend(place + fault for fault in settings.faults())
    return settings


def write(settings: Table, where: str = "") -> str:
    """Return the settings as TOML text that `read` turns into the same settings."""
    own, below = [], []
    for name, item in _fields(type(settings)).items():
        value = getattr(settings, name)
        if "kind" in item.metadata:
            own.append(f"{name} = {item.metadata['kind'].spell(value)}\n")
        elif isinstance(value, Table):
            below.append(write(value, f"[{_inner(where, name)}]"))
        else:
            below.extend(write(row, f"[[{_inner(where, name)}]]") for row in value)
    head = [f"{where}\n" + "".join(own)] if where else []
    return "\n".join(head + below)


def _value(item: Field[Any], value: object, faults: list[str], where: str) -> object:
    if "kind" in item.metadata:
        return item.metadata["kind"].check(value)
    header = _inner(where, item.name)
    if isinstance(item.default, Table):
        if not isinstance(value, dict):
            raise ConfigError(f"want a table, [{header}]")
        return read(type(item.default), value, faults, f"[{header}]")
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ConfigError(f"want an array of tables, [[{header}]]")
    cls = item.metadata["rows"]
    return tuple(read(cls, row, faults, f"[[{header}]] {place}:") for place, row in enumerate(value, start=1))


def _fields(of: Union[Table, type[Table]]) -> dict[str, Field[Any]]:
    return {item.name: item for item in fields(of)}  # type: ignore[arg-type]  # Table is never used by itself


def _inner(where: str, name: str) -> str:
    """Return the header of a table in a table, without its brackets."""
    return f"{where.strip('[]')}.{name}" if where else name


def _advice(key: str, where: str, known: Mapping[str, Field[Any]]) -> str:
    near = near_miss(key, known)
    if near:
        return f"did you mean {near}?"
    if not where:
        tables = {name: item.default for name, item in known.items() if isinstance(item.default, Table)}
        homes = [f"[{name}]" for name, default in tables.items() if key in _fields(default)]
        if homes:
            return f"it belongs into {one_of(homes)}"
    return f"known are {', '.join(known)}"


def _excerpt(value: object) -> str:
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value).replace("'", '"')
    return text if len(text) <= 60 else text[:57] + "…"  # noqa: PLR2004 - one line for people
