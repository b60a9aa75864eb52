"""What the guard asks of the kernel's device control, on cgroup v1 and v2 alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Optional, Protocol

from gpuguard.kernel.hierarchy import Contained
from gpuguard.model.device_list import DeviceList
from gpuguard.model.nested import GroupBelow
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet


class DeviceControl(Protocol):
    """The hierarchy that gates devices. Control groups are named as systemd names them.

    All raise CgroupGoneError and CgroupUnreadableError.
    """

    @property
    def writable(self) -> bool:
        """Whether a rule can be written directly: on cgroup v1."""

    @property
    def crowded(self) -> bool:
        """Whether the last walk through the hierarchy was cut short beside the slices."""

    def units(self, wanted: Callable[[str], bool], contained: Optional[Contained] = None) -> Iterator[tuple[str, int]]:
        """Yield control group and inode of the units whose name is `wanted`, and of what is `contained` without one."""

    def inode(self, control_group: str) -> int:
        """Return the inode of a control group."""

    def read(self, control_group: str, candidates: Iterable[Rule] = ()) -> DeviceList:
        """Read what the kernel allows now; `candidates` must be told of, whatever else is."""

    def as_made(self, control_group: str, rules: RuleSet) -> bool:
        """Whether `rules` may be what the kernel gives every new control group there."""

    def allow(self, control_group: str, inode: int, rule: Rule) -> None:
        """Add one rule. Raises DeniedError, too."""

    def groups(self, control_group: str) -> tuple[list[GroupBelow], bool]:
        """Return the groups below a container's own that have lists, and whether there are more than that."""

    def allow_below(self, control_group: str, inode: int, group: tuple[str, int], rule: Rule) -> None:
        """Add one rule to a group below a container's own, of this path and inode. Raises DeniedError, too."""

    def shield(self, control_group: str, inode: int) -> None:
        """Keep systemd's rewrite from taking anything away."""

    def unshield(self, control_group: str, inode: int) -> bool:
        """Let systemd's rewrites through again; return whether they were kept off."""

    def shielded(self, control_group: str) -> bool:
        """Whether systemd's rewrites are kept off."""

    def groups_below(self, control_group: str) -> frozenset[str]:
        """Return the names of the control groups directly below."""

    def populated(self, control_group: str) -> bool:
        """Whether there is a process in the control group itself."""

    def forget(self, control_group: str) -> None:
        """Let go of what is kept of a control group."""

    def close(self) -> None:
        """Let go of all that is kept."""
