"""Values from outside that become labels: cleaned, and no more than so many. Pure."""

from __future__ import annotations

from typing import Optional

from gpuguard.model.clean import LIMIT, clean

__all__ = ["LIMIT", "Capped", "clean"]


class Capped:
    """Label values from outside: cleaned, and from the `limit`-th distinct one on all "other"."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[str] = set()

    def __call__(self, text: Optional[str]) -> str:
        """Return the label for a value; for none it is "unknown"."""
        label = clean(text or "unknown")
        if label not in self._known:
            if len(self._known) >= self._limit:
                return "other"
            self._known.add(label)
        return label
