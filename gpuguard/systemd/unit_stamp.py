"""A cheap sign that what a reload would read for a unit may have changed, since nothing tells.

systemd's own sign, NeedDaemonReload, stays "no" for a drop-in in a directory that was made after the
last reload (seen on 252: its cache of paths does not know the directory).
"""

from __future__ import annotations

import functools
import os

from gpuguard.systemd.unit_files import UNIT_DIRS, drop_in_names

# Every container that starts or ends changes this one; what is in it for one unit is looked at by itself.
_TRANSIENT = "run/systemd/transient"

Stamp = tuple[int, ...]


@functools.lru_cache(maxsize=4096)
def _family(unit: str) -> tuple[str, ...]:
    """Return the names of the drop-in directories that the unit shares with others."""
    return (*list(drop_in_names(unit))[1:], unit.rpartition(".")[2])


class UnitStamps:
    """Modification times of the directories that hold units' files, those of many units read once per round."""

    def __init__(self, root: str = "/") -> None:
        self._root = root
        self._shared: dict[tuple[str, ...], Stamp] = {}

    def refresh(self) -> None:
        """Begin a new round."""
        self._shared.clear()

    def stamp(self, unit: str) -> Stamp:
        """Return the unit's stamp, in ns since the epoch; an edit of a file in its place does not change it."""
        family = _family(unit)
        shared = self._shared.get(family)
        if shared is None:
            shared = self._shared[family] = tuple(self._times(family))
        return (self._modified(f"{_TRANSIENT}/{unit}.d"), *shared)

    def _times(self, names: tuple[str, ...]) -> list[int]:
        directories = [directory for directory in UNIT_DIRS if directory != _TRANSIENT]
        directories += [f"{directory}/{name}.d" for directory in UNIT_DIRS for name in names]
        return [self._modified(directory) for directory in directories]

    def _modified(self, directory: str) -> int:
        try:
            return os.stat(f"{self._root}/{directory}").st_mtime_ns  # noqa: PTH116 -- in the clock's round, per unit
        except OSError:
            return 0
