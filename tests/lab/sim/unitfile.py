"""Unit files and drop-ins of the fake systemd: their text, and which of them belong to a unit."""

from __future__ import annotations

import shutil
from collections.abc import Container, Iterable, Iterator
from pathlib import Path

TRANSIENT = "run/systemd/transient"

# In the order of priority; systemd's unit search path, without the directories that nobody needs here.
_SEARCH = (TRANSIENT, "etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system")

_FRAGMENT_HEAD = "# This is a transient unit file, created programmatically via the systemd API. Do not edit.\n"
_DROP_IN_HEAD = (
    '# This is a drop-in unit file extension, created via "systemctl set-property"\n'
    "# or an equivalent operation. Do not edit.\n"
)


def assignments(text: str) -> Iterator[tuple[str, str]]:
    """Yield the key and the value of each line that has them, whatever the section."""
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and not line.startswith(("#", ";")):
            yield key.strip(), value.strip()


def fragment_text(lines: Iterable[tuple[str, str]]) -> str:
    """Return the file of a transient unit, from pairs of section and line."""
    return _FRAGMENT_HEAD + _sections(lines)


def drop_in_text(lines: Iterable[tuple[str, str]]) -> str:
    """Return the file of one property that was set at run time."""
    return _DROP_IN_HEAD + _sections(lines) + "\n"


def find_fragment(root: Path, unit: str) -> str:
    """Return the path of the unit's own file, "" when there is none."""
    return next((str(path) for place in _SEARCH if (path := root / place / unit).is_file()), "")


def drop_in_directories(root: Path) -> set[Path]:
    """Return all directories with drop-ins.

    systemd looks only into those that it knew at its last reload or made itself (unit_path_cache), so that
    the first drop-in in a new directory is not noticed, nor is NeedDaemonReload true, until the next reload.
    """
    return {path for place in _SEARCH for path in (root / place).glob("*.d")}


def find_drop_ins(root: Path, unit: str, known: Container[Path]) -> list[str]:
    """Return the paths of the unit's drop-ins in the order in which they are read.

    That order is by file name over all `known` directories; of one name, the directory that comes first wins
    (systemd.unit(5): in each place `NAME.d`, then `PREFIX-.scope.d` from long to short, then `scope.d`).
    """
    found: dict[str, str] = {}
    for place in _SEARCH:
        for name in _drop_in_names(unit):
            directory = root / place / name
            if directory in known:
                for path in directory.glob("*.conf"):
                    found.setdefault(path.name, str(path))
    return [found[name] for name in sorted(found)]


def forget_transient(root: Path, unit: str) -> None:
    """Remove the files that systemd has written for a transient unit."""
    (root / TRANSIENT / unit).unlink(missing_ok=True)
    shutil.rmtree(root / TRANSIENT / f"{unit}.d", ignore_errors=True)


def _drop_in_names(unit: str) -> Iterator[str]:
    name, _, kind = unit.rpartition(".")
    yield f"{unit}.d"
    dashes = [place for place, letter in enumerate(name) if letter == "-" and place + 1 < len(name)]
    for place in reversed(dashes):
        yield f"{name[: place + 1]}.{kind}.d"
    yield f"{kind}.d"


def _sections(lines: Iterable[tuple[str, str]]) -> str:
    text = ""
    current = None
    for section, line in lines:
        if section != current:
            text += f"[{section}]\n"
            current = section
        text += f"{line}\n"
    return text
