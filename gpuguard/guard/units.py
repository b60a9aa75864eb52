"""Which units are guarded: containers by their control group's name, and what the configuration adds or leaves out."""

from __future__ import annotations

import functools
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.config import Scopes
from gpuguard.model.container_group import ContainerGroup, parse
from gpuguard.model.scope_name import NSPAWN, ContainerScope

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
        if self._named(unit):
            return ContainerScope.parse(unit) or ContainerScope(UNIT_RUNTIME, unit)
        return ContainerScope.parse(unit)

    def _named(self, unit: str) -> bool:
        return any(fnmatchcase(unit, pattern) for pattern in self._further)

    def wanted(self, unit: str) -> bool:
        """Whether a unit of this name is guarded, if it has GPU devices."""
        return self.container(unit) is not None

    def group(self, control_group: str) -> Optional[ContainerGroup]:
        """Return what the name of a control group tells, None for one that is not guarded."""
        found = parse(control_group)
        if found is not None and found.vouched:
            return None if self.excluded(found) else found
        unit = PurePosixPath(control_group).name
        container = self.container(unit)
        if container is None:
            return None
        # Virtual machines have such scopes, too; what the configuration names is the operator's word.
        vouched = container.runtime == NSPAWN and not self._named(unit)
        return ContainerGroup(control_group, unit, control_group, container, vouched)

    def excluded(self, group: ContainerGroup) -> bool:
        """Whether a container is left alone: by the name of its unit, of its control group, or of its path."""
        names = (group.unit, PurePosixPath(group.control_group).name, group.control_group)
        return any(fnmatchcase(name, pattern) for pattern in self._exclude for name in names)
