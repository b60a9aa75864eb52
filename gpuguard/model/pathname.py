"""Pathnames, taken apart without a look at any file. Pure."""

from __future__ import annotations

import posixpath

NO_NAMES = frozenset({"", ".", ".."})
"""What stands between two slashes and names nothing in the directory before it."""


def within(path: str, directory: str) -> bool:
    """Whether a path is a directory's or of what is below it, by its names alone."""
    return path == directory or path.startswith(directory if directory.endswith("/") else f"{directory}/")


def shortest(path: str) -> str:
    """Return a path as Go's filepath.Clean does, which knows no path that begins with two slashes."""
    path = posixpath.normpath(path)
    return path[1:] if path.startswith("//") else path
