"""Which units are guarded: containers by their scope's name, and what the configuration adds or leaves out."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from typing import Optional

from gpuguard.config import Scopes
from gpuguard.model.scope_name import ContainerScope

UNIT_RUNTIME = "systemd"

_REMEMBERED = 8192


class Units:
    """Tells by a unit's name whether it is guarded, and which container it is."""

    def __init__(self, settings: Scopes) -> None:
        self._further = settings.units
        self._exclude = settings.exclude
        # Each round of the clock asks about all units of the node.
        self.container = functools.lru_cache(maxsize=_REMEMBERED)(self._container)

    def _container(self, unit: str) -> Optional[ContainerScope]:
        """Return the container, None for a unit that is not guarded. A plain unit is its own container."""
        if any(fnmatchcase(unit, pattern) for pattern in self._exclude):
            return None
        if any(fnmatchcase(unit, pattern) for pattern in self._further):
            return ContainerScope.parse(unit) or ContainerScope(UNIT_RUNTIME, unit)
        return ContainerScope.parse(unit)

    def wanted(self, unit: str) -> bool:
        """Whether a unit of this name is guarded, if it has GPU devices."""
        return self.container(unit) is not None
