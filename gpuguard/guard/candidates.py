"""Control groups that look like containers without a scope of their own: each counts once its runtime vouches for it.

Anybody who is root somewhere could have made them, under any name.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Optional, TypeVar

from gpuguard.guard.units import Units
from gpuguard.model.container_group import ContainerGroup

# A runtime's files may be written when the control group is there already. Who was refused is asked about again, each
# time after twice as long. Seconds.
_AGAIN = 1.0
_LONGEST = 300.0
_REMEMBERED = 8192

_Key = tuple[str, int]
_Value = TypeVar("_Value")


@dataclass
class _Refused:
    """Until when a candidate is not asked about, in seconds of CLOCK_MONOTONIC, and for how long next time."""

    until: float
    pause: float = _AGAIN


class Candidates:
    """Asks `vouches` about control groups, and remembers what came of it by their inodes. It must raise nothing."""

    def __init__(self, units: Units, vouches: Callable[[ContainerGroup], Awaitable[bool]]) -> None:
        self._units = units
        self._vouches = vouches
        self._vouched: dict[_Key, None] = {}
        self._refused: dict[_Key, _Refused] = {}

    def known(self, group: ContainerGroup, inode: int) -> Optional[bool]:
        """Whether a control group is vouched for, None when it is time to ask about it."""
        key = group.control_group, inode
        if key in self._vouched:
            return True
        refused = self._refused.get(key)
        return None if refused is None or time.monotonic() >= refused.until else False

    async def vouched(self, group: ContainerGroup, inode: int) -> bool:
        """Whether a control group is that of a container that is guarded, if it has GPU devices."""
        key, known = (group.control_group, inode), self.known(group, inode)
        if known is not None:
            return known
        found = not self._units.excluded(group) and await self._vouches(group)
        refused = self._refused.pop(key, None)
        if found:
            self._vouched[key] = None
            _bound(self._vouched)
        else:
            pause = _AGAIN if refused is None else min(2 * refused.pause, _LONGEST)
            self._refused[key] = _Refused(time.monotonic() + pause, pause)
            _bound(self._refused)
        return found

    def forget(self, control_group: str, inode: int) -> None:
        """Let go of what is remembered of a control group that is gone."""
        self._vouched.pop((control_group, inode), None)


def _bound(known: dict[_Key, _Value]) -> None:
    if len(known) > _REMEMBERED:
        del known[next(iter(known))]
