"""The control groups of a process, as /proc/PID/cgroup has them (cgroups(7)). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Membership(NamedTuple):
    """A hierarchy's controllers ("name=systemd" among them; none: the unified one), and the process's group in it."""

    controllers: tuple[str, ...]
    control_group: str


def memberships(text: str) -> Iterator[Membership]:
    """Yield each hierarchy of a text; a line of another form is none."""
    # A group's name may have any other character in it that splitlines() takes for an end.
    for line in text.split("\n"):
        _, *rest = line.split(":", 2)
        if len(rest) > 1:
            yield Membership(tuple(filter(None, rest[0].split(","))), rest[1])
