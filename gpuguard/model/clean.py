"""Text from outside (names of containers, programs, pods) made fit for labels and messages. Pure."""

from __future__ import annotations

LIMIT = 128


def clean(text: str, limit: int = LIMIT) -> str:
    """Return at most `limit` characters, each that cannot be printed replaced by U+FFFD.

    Not printable to str.isprintable() are control characters, line separators, marks that turn the
    writing direction, and the lone surrogates that stand for bytes which are not UTF-8.
    """
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text[:limit])
