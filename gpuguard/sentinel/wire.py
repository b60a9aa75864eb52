"""What the daemon and its sentinel say to each other: one JSON document a line, over a stream socket.

Rules are their own text, a RuleSet is the lines of its list. Decoding raises SentinelError on anything else.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union, cast

from gpuguard.errors import SentinelError
from gpuguard.model.process import Process
from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import ALLOW_ALL, RuleSet
from gpuguard.model.write import ProgramsChanged, Standing, Watched, Write

# A list of a few thousand rules fits; what is longer is not from gpuguard.
LONGEST = 1 << 20


@dataclass(frozen=True)
class Forget:
    """To the sentinel: watch this control group no more."""

    control_group: str


@dataclass(frozen=True)
class Awake:
    """To the sentinel: systemd may rewrite device lists within so many seconds from now; 0: it has."""

    seconds: float


@dataclass(frozen=True)
class Ping:
    """To the sentinel: answer when all that was said before is done, and all that came of it is told."""

    number: int


@dataclass(frozen=True)
class Pong:
    """From the sentinel: the answer to the Ping of this number."""

    number: int


@dataclass(frozen=True)
class Overflow:
    """From the sentinel: something was not told, by the kernel or by itself. Look at everything."""


@dataclass(frozen=True)
class Blind:
    """From the sentinel: it cannot see what it is to watch, and why. It goes on trying; Overflow tells the end."""

    reason: str


ToSentinel = Union[Watched, Forget, Awake, Ping]
FromSentinel = Union[Standing, Write, ProgramsChanged, Pong, Overflow, Blind]
Message = Union[ToSentinel, FromSentinel]

_Made = dict[str, Any]


def encode(message: Message) -> bytes:
    """Return the line for a message, with its end."""
    fields = {name: _written(value) for name, value in vars(message).items()}
    # ASCII alone: a name from /proc may hold bytes that are no text, which come back as they were.
    return json.dumps({"is": type(message).__name__, **fields}, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """Return the message of a line. Raises SentinelError."""
    try:
        made = json.loads(line)
        return _READERS[made.pop("is")](made)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SentinelError(f"not a message between the daemon and its sentinel: {line[:120]!r}: {error}") from error


def _written(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(map(str, value))
    if isinstance(value, RuleSet):
        return value.text().splitlines()
    if isinstance(value, Process):
        return {name: _written(part) for name, part in vars(value).items()}
    if isinstance(value, tuple):
        return [_written(part) for part in value]
    return value


def _watched(made: _Made) -> Watched:
    return Watched(
        _text(made["control_group"]),
        _number(made["inode"]),
        _rules(made["undeclared"]),
        _rules(made["declared"]),
        _flag(made["heal"]),
        _flag(made["growing"]),
    )


def _write(made: _Made) -> Write:
    return Write(
        control_group=_text(made["control_group"]),
        inode=_number(made["inode"]),
        at=_seconds(made["at"]),
        denied=_flag(made["denied"]),
        writer=_maybe(_process, made["writer"]),
        requester=_processes(made["requester"]),
        before=_maybe(_list, made["before"]),
        after=_maybe(_list, made["after"]),
        restored=_rules(made["restored"]),
        whole_at=_maybe(_seconds, made["whole_at"]),
        refused=_flag(made["refused"]),
        error=_maybe(_text, made["error"]),
        pid=_number(made["pid"]),
    )


def _programs_changed(made: _Made) -> ProgramsChanged:
    writer = _maybe(_process, made["writer"])
    return ProgramsChanged(_seconds(made["at"]), _text(made["name"]), writer, _processes(made["requester"]))


def _standing(made: _Made) -> Standing:
    return Standing(_text(made["scheduling"]), _maybe(_text, made["reason"]))


def _process(made: _Made) -> Process:
    return Process(
        pid=_number(made["pid"]),
        name=_text(made["name"]),
        exe=_text(made["exe"]),
        command=_texts(made["command"]),
        control_group=_text(made["control_group"]),
        started=_maybe(_seconds, made["started"]),
        parent=_number(made["parent"]),
        native=_flag(made["native"]),
    )


def _overflow(_made: _Made) -> Overflow:
    return Overflow()


_READERS: dict[str, Callable[[_Made], Message]] = {
    "Watched": _watched,
    "Forget": lambda made: Forget(_text(made["control_group"])),
    "Awake": lambda made: Awake(_seconds(made["seconds"])),
    "Ping": lambda made: Ping(_number(made["number"])),
    "Pong": lambda made: Pong(_number(made["number"])),
    "Standing": _standing,
    "Write": _write,
    "ProgramsChanged": _programs_changed,
    "Overflow": _overflow,
    "Blind": lambda made: Blind(_text(made["reason"])),
}


def _maybe(read: Callable[[Any], Any], value: object) -> Any:  # noqa: ANN401 - what `read` returns, or None
    return None if value is None else read(value)


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is not a whole number")
    return value


def _seconds(value: object) -> float:
    if type(value) not in {int, float}:
        raise TypeError(f"{value!r} is not a time")
    return float(cast("float", value))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not a text")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(map(_text, value))


def _rules(value: object) -> frozenset[Rule]:
    return frozenset(map(Rule.parse, _texts(value)))


def _list(value: object) -> RuleSet:
    lines = _texts(value)
    return RuleSet(unrestricted=True) if ALLOW_ALL in lines else RuleSet(frozenset(map(Rule.parse, lines)))


def _processes(value: object) -> tuple[Process, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is not a list")
    return tuple(map(_process, value))
