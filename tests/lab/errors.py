"""What the lab raises when a node or a container does not do what was asked."""

from __future__ import annotations


class LabError(Exception):
    """The lab could not do it; the text says what, why, and shows the tail of the log at hand."""


class UnsuitableError(LabError):
    """This machine lacks what it takes, such as root, a program or a mirror; the text says what."""
