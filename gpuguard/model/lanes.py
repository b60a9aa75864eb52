"""The fourteen questions that a device program can be asked about one device: its type and the access wanted."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from gpuguard.model.rule import Access
from gpuguard.model.steps import ACCESS_SHIFT, KINDS

_ACCESSES = range(1, Access.RWM + 1)

# A lane is a bit: one of these questions. A set of them is an int.
WORDS = tuple(KINDS[kind] | access << ACCESS_SHIFT for kind in KINDS for access in _ACCESSES)
ALL_LANES = (1 << len(WORDS)) - 1
_BITS = {(kind, access): 1 << lane for lane, (kind, access) in enumerate((k, a) for k in KINDS for a in _ACCESSES)}
# What the kernel does ask: mknod(2) for m, open(2) for r, w or rw, and nobody for m with another
# (include/linux/device_cgroup.h, devcgroup_inode_permission and devcgroup_inode_mknod; Linux 4.15 to 6.18).
ASKED = sum(bit for (_, access), bit in _BITS.items() if access in (Access.MKNOD, Access.READ, Access.WRITE, Access.RW))


@cache
def lanes_of(kind: str, access: Access) -> int:
    """Return the questions to which a rule of this type and access says yes: each part of the access too."""
    return sum(_BITS[kind, part] for part in _ACCESSES if not part & ~access)


def largest(lanes: int) -> Iterator[tuple[str, Access]]:
    """Go through the types and accesses among the lanes that are not part of a larger one among them."""
    for kind in KINDS:
        asked = [access for access in _ACCESSES if lanes & _BITS[kind, access]]
        for access in asked:
            if not any(access != other and not access & ~other for other in asked):
                yield kind, Access(access)


def completed(lanes: int) -> int:
    """Return the lanes with those that nobody asks added wherever each part that is asked is among them."""
    return lanes | sum(
        bit
        for (kind, access), bit in _BITS.items()
        if access & Access.MKNOD and not (_BITS[kind, Access.MKNOD] | _BITS.get((kind, access & Access.RW), 0)) & ~lanes
    )
