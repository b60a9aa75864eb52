"""What systemd would read for a unit at its next reload: the fragment and its drop-ins, as they are on disk now.

The bus does not tell: its DropInPaths are those of the last time the unit was loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

from gpuguard.errors import UnitFileError

# systemd.unit(5), "Unit File Search Path", highest priority first, with the two "attached" directories that it leaves
# out (`systemd-analyze unit-paths` of 252 has them).
UNIT_DIRS = (
    "etc/systemd/system.control",
    "run/systemd/system.control",
    "run/systemd/transient",
    "run/systemd/generator.early",
    "etc/systemd/system",
    "etc/systemd/system.attached",
    "run/systemd/system",
    "run/systemd/system.attached",
    "run/systemd/generator",
    "usr/local/lib/systemd/system",
    "usr/lib/systemd/system",
    "lib/systemd/system",
    "run/systemd/generator.late",
)

# systemd itself refuses unit files of more than 4 MiB; those of device rules are below 100 KiB.
MAX_SIZE = 1024 * 1024


@dataclass(frozen=True)
class UnitFile:
    """One file and its text. A file that is masked has an empty text."""

    path: str
    text: str


def texts(fragment: str, name: str, root: str = "/") -> list[UnitFile]:
    """Return a unit's files in the order in which systemd would apply them: a later assignment wins.

    `fragment` is the unit's FragmentPath on the bus, "" if it has none. It is read only if no file of the unit's
    name is found in the directories that systemd searches. Blocks for the time of some 60 directory look-ups.
    Raises UnitFileError, which names the file.
    """
    top = root.rstrip("/")
    paths = [_fragment(top, fragment, name), *_drop_ins(top, name)]
    files = [_read(path) for path in paths if path]
    return [file for file in files if file]


def drop_in_names(name: str) -> Iterator[str]:
    """Yield the names whose `.d` directories hold for a unit, most specific first, without the type-wide one.

    For docker-x.scope: docker-x.scope, docker-.scope. The order, and what is done about instances and dashes at the
    end, are those of unit_file_find_dirs() in systemd's src/shared/dropin.c.
    """
    yield name
    stem, _, kind = name.rpartition(".")
    prefix, _, instance = stem.partition("@")
    if instance:
        yield from drop_in_names(f"{prefix}@.{kind}")
    dash = prefix[:-1].rfind("-")
    if dash > 0:
        yield from drop_in_names(f"{prefix[: dash + 1]}{'@' + instance if instance else ''}.{kind}")


def _fragment(root: str, fragment: str, name: str) -> Optional[str]:
    # An instance without a file of its own has its template's, whose name is the fragment's.
    for candidate in dict.fromkeys((name, os.path.basename(fragment))):  # noqa: PTH119 -- "" must stay ""
        for directory in UNIT_DIRS:
            path = f"{root}/{directory}/{candidate}"
            if candidate and os.path.lexists(path):
                return path
    return f"{root}/{fragment.lstrip('/')}" if fragment else None


def _drop_ins(root: str, name: str) -> list[str]:
    names = list(drop_in_names(name))
    directories = [f"{directory}/{one}.d" for directory in UNIT_DIRS for one in names]
    # systemd 244 and later: the most general ones, such as scope.d.
    directories += [f"{directory}/{name.rpartition('.')[2]}.d" for directory in UNIT_DIRS]
    found: dict[str, str] = {}
    for directory in directories:
        path = f"{root}/{directory}"
        for file_name in _conf_files(path):
            found.setdefault(file_name, f"{path}/{file_name}")
    return [found[file_name] for file_name in sorted(found, key=os.fsencode)]


def _conf_files(directory: str) -> list[str]:
    try:
        names = os.listdir(directory)  # noqa: PTH208 -- six times cheaper, and almost none of them is there
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise UnitFileError(f"cannot list {directory}: {error.strerror}; what a reload would do is unknown") from error
    return [name for name in names if name.endswith(".conf") and not name.startswith(".")]


def _read(path: str) -> Optional[UnitFile]:
    try:
        with open(path, "rb") as file:  # noqa: PTH123 -- a Path costs more than the file
            data = file.read(MAX_SIZE + 1)
    except FileNotFoundError:  # a dangling link, or just removed: systemd goes on without it, too
        return None
    except OSError as error:
        raise UnitFileError(f"cannot read {path}: {error.strerror}; what a reload would do is unknown") from error
    if len(data) > MAX_SIZE:
        raise UnitFileError(f"{path} is longer than {MAX_SIZE} bytes; what a reload would do is unknown")
    return UnitFile(path, data.decode(errors="surrogateescape"))
