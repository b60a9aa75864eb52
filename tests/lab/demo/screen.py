"""What the demo looks like: headings, commands, device lists with what has changed in them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

_PLAIN = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()


def _in(code: str, text: str) -> str:
    return text if _PLAIN else f"\x1b[{code}m{text}\x1b[0m"


def good(text: str) -> str:
    """Return text in green."""
    return _in("32", text)


def bad(text: str) -> str:
    """Return text in bold red."""
    return _in("1;31", text)


def heading(text: str) -> None:
    """Begin an act."""
    print(f"\n{_in('1', text)}\n{_in('2', '─' * len(text))}", flush=True)


def say(text: str = "") -> None:
    """Print a line of the story."""
    print(f"  {text}" if text else "", flush=True)


def command(text: str) -> None:
    """Show the command that is run next."""
    print(f"  {_in('36', '$ ' + text)}", flush=True)


def lists(title: str, before: Iterable[str], now: Iterable[str]) -> None:
    """Show the GPU lines of a devices.list: those that are there, those that are gone, those that came."""
    old, new = set(before), set(now)
    parts = [_in("2", rule) if rule in old else good("+ " + rule) for rule in sorted(new)]
    parts += [bad("- " + rule) for rule in sorted(old - new)]
    say(f"{title:<32}" + ("   ".join(parts) or bad("none")))


def answer(what: str, *, allowed: bool, detail: str) -> None:
    """Show what an open came to."""
    word = good("allowed") if allowed else bad("DENIED")
    say(f"{what:<32}{word}  {_in('2', detail)}")


def quote(lines: Iterable[str]) -> None:
    """Show what a program said."""
    for line in lines:
        print(f"  {_in('2', '│')} {line}", flush=True)
