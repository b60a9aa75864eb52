"""The states of a GPU container."""

from __future__ import annotations

import enum


class State(str, enum.Enum):
    """How it stands with a container's devices. Where several hold, the one named first here wins."""

    UNRESTRICTED = "unrestricted"
    OPAQUE = "opaque"
    SETTLING = "settling"
    STALE = "stale"
    LOST = "lost"
    PARTIAL = "partial"
    AT_RISK = "at-risk"
    PROTECTED = "protected"
