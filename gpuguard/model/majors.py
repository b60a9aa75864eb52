"""Which driver holds which major number: /proc/devices, parsed."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from gpuguard.model.rule import BLOCK, CHAR, MAX_MAJOR

_HEADERS = {"Character devices:": CHAR, "Block devices:": BLOCK}
_LINE = re.compile(r"[ ]*([0-9]{1,7})[ ]+(\S.*)")


class DeviceNumber(NamedTuple):
    """Type, major and minor of one device node, as stat(2) gives them."""

    kind: str
    major: int
    minor: int


@dataclass(frozen=True)
class Majors:
    """The registered drivers as (type, major, name). One major may carry several names."""

    drivers: frozenset[tuple[str, int, str]] = frozenset()

    # It changes when a driver is loaded, and is read for each look.
    @classmethod
    @functools.lru_cache(maxsize=4)
    def parse(cls, text: str) -> Majors:
        """Read the text of /proc/devices. A line of another form is skipped: nothing is guessed from it."""
        drivers = set()
        kind = None
        for raw in text.split("\n"):
            line = raw.rstrip()
            match = _LINE.fullmatch(line)
            if match is None:
                kind = _HEADERS.get(line)
                continue
            major = int(match[1])
            # systemd takes no major 0 from this file (bpf-devices.c), and the kernel has none to print.
            if kind is not None and 0 < major <= MAX_MAJOR:
                drivers.add((kind, major, match[2]))
        return cls(frozenset(drivers))

    def names(self, kind: str, major: int) -> frozenset[str]:
        """Return the drivers of one major, empty when it is not registered."""
        return frozenset(name for k, m, name in self.drivers if (k, m) == (kind, major))

    def matching(self, kind: str, glob: str) -> frozenset[int]:
        """Return the majors that have a name matching the pattern, case-sensitively.

        Patterns are those of fnmatch(3) without its backslash, `[^` and `[:class:]` forms: such a
        pattern matches nothing here, so that no permission is believed in that may not be there.
        """
        if any(form in glob for form in ("\\", "[^", "[:", "[.", "[=")):
            return frozenset()
        return frozenset(m for k, m, name in self.drivers if k == kind and fnmatchcase(name, glob))
