"""A device rule as the kernel's device cgroup knows it: type, major, minor, access."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import Optional

from gpuguard.errors import RuleError

# linux/kdev_t.h: MINORBITS is 20, which leaves 12 bits for the major.
MAX_MAJOR = (1 << 12) - 1
MAX_MINOR = (1 << 20) - 1

CHAR = "c"
BLOCK = "b"

_LINE = re.compile(r"([cb]) (\d{1,7}|\*):(\d{1,7}|\*) ([rwm]{1,3})", re.ASCII)


class Access(enum.IntFlag):
    """What a rule permits. The numbers are those of BPF_DEVCG_ACC_* in linux/bpf.h."""

    NONE = 0
    MKNOD = 1
    READ = 2
    WRITE = 4
    RW = READ | WRITE
    RWM = READ | WRITE | MKNOD

    @classmethod
    def parse(cls, text: str) -> Access:
        """Read letters such as "rw". Raises RuleError on anything else, also on an empty text."""
        access = cls.NONE
        for letter in text:
            bit = _LETTERS.get(letter)
            if bit is None:
                raise RuleError(f"access {text!r}: want a combination of r, w and m")
            access |= bit
        if not access:
            raise RuleError("access is empty: want a combination of r, w and m")
        return access

    def letters(self) -> str:
        """Return the kernel's spelling, in its order: r, w, m."""
        return "".join(letter for letter, bit in _LETTERS.items() if int(self) & int(bit))


# Plain numbers where rules are compared: an operation on enum.IntFlag takes a microsecond, ten times as long.
_RW = int(Access.RW)
_LETTERS = {"r": Access.READ, "w": Access.WRITE, "m": Access.MKNOD}


@dataclass(frozen=True)
class Rule:
    """One entry of a device list. A major or minor of None is the wildcard `*`."""

    kind: str
    major: Optional[int]
    minor: Optional[int]
    access: Access

    def __post_init__(self) -> None:
        """Refuse what the kernel could not hold."""
        if self.kind not in {CHAR, BLOCK}:
            raise RuleError(f"device type {self.kind!r}: want c or b")
        if self.major is not None and not 0 <= self.major <= MAX_MAJOR:
            raise RuleError(f"major {self.major}: want 0 to {MAX_MAJOR}")
        if self.minor is not None and not 0 <= self.minor <= MAX_MINOR:
            raise RuleError(f"minor {self.minor}: want 0 to {MAX_MINOR}")
        if not self.access:
            raise RuleError("a rule without access permits nothing: want r, w or m")

    @classmethod
    def parse(cls, line: str) -> Rule:
        """Read one line in the form of devices.list, "c 195:0 rwm". Raises RuleError.

        `a *:* rwm` (no filter at all) is not a rule: RuleSet.parse knows it.
        """
        match = _LINE.fullmatch(line)
        if match is None:
            raise RuleError(f"not a device rule: {line[:80]!r} (want e.g. 'c 195:0 rw')")
        kind, major, minor, access = match.groups()
        return cls(kind, _number(major), _number(minor), Access.parse(access))

    @property
    def device(self) -> str:
        """The rule without its access, e.g. "c 195:0" or "c 136:*"."""
        major = "*" if self.major is None else self.major
        minor = "*" if self.minor is None else self.minor
        return f"{self.kind} {major}:{minor}"

    @property
    def opens(self) -> bool:
        """Whether it lets anybody open the device: `m` alone only permits mknod(2)."""
        return int(self.access) & _RW != 0

    @property
    def sort_key(self) -> tuple[str, int, int, int]:
        """Order for people: by type, major, minor; wildcards first."""
        major = -1 if self.major is None else self.major
        minor = -1 if self.minor is None else self.minor
        return (self.kind, major, minor, int(self.access))

    def covers(self, other: Rule) -> bool:
        """Whether this one entry permits all that `other` permits (kernel: match_exception)."""
        return (
            self.kind == other.kind
            and self.major in {None, other.major}
            and self.minor in {None, other.minor}
            and not int(other.access) & ~int(self.access)
        )

    def meet(self, other: Rule) -> Optional[Rule]:
        """Return the rule for what both entries permit, None when that is nothing."""
        access = self.access & other.access
        if not access or self.kind != other.kind or _apart(self.major, other.major) or _apart(self.minor, other.minor):
            return None
        major = other.major if self.major is None else self.major
        minor = other.minor if self.minor is None else self.minor
        return Rule(self.kind, major, minor, access)

    def __str__(self) -> str:
        """Return the line as the kernel reads and writes it."""
        return f"{self.device} {self.access.letters()}"


def _apart(number: Optional[int], other: Optional[int]) -> bool:
    return number is not None and other is not None and number != other


def _number(text: str) -> Optional[int]:
    return None if text == "*" else int(text)
