"""A device rule that a container was given, and how that is known."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from gpuguard.model.rule import Rule


class Source(str, enum.Enum):
    """How an entitlement is known, the strongest first."""

    LEDGER = "ledger"
    SPEC = "spec"
    REQUEST = "env"


@dataclass(frozen=True)
class Grant:
    """One rule that the runtime's own files say was given to a container.

    `why` is for people: the file, and what in it.
    """

    rule: Rule
    source: Source
    why: str
