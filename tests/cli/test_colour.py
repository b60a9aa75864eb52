"""When there is colour."""

from __future__ import annotations

import io
import os
import pty
from collections.abc import Iterator
from typing import TextIO

import pytest

from gpuguard.cli import colour


@pytest.fixture
def terminal() -> Iterator[TextIO]:
    """Yield a stream that is a terminal."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream:
        yield stream
    os.close(ours)


def test_a_terminal_gets_colour(terminal: TextIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person looks at it."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert colour.wanted(terminal)


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_the_environment_can_say_no(terminal: TextIO, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    """NO_COLOR and a dumb terminal are obeyed."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(name, value)
    assert not colour.wanted(terminal)


def test_anything_else_gets_none() -> None:
    """Pipes and files stay free of escapes."""
    assert not colour.wanted(io.StringIO())
