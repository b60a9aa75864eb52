"""Text from outside (names of containers, programs, pods) made fit for labels and messages. Pure."""

from __future__ import annotations

from typing import Optional

LIMIT = 128


def clean(text: str, limit: int = LIMIT) -> str:
    """Return at most `limit` characters, each that cannot be printed replaced by U+FFFD.

    Not printable to str.isprintable() are control characters, line separators, marks that turn the
    writing direction, and the lone surrogates that stand for bytes which are not UTF-8.
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:limit])


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
