"""The parts of speech of gpuguard's messages: who, what, by whom, for how long. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Optional

from gpuguard.report.clean import clean

# Longer ones are cut: a message is a line for people, the fields beside it have everything.
_LIMIT = 300
_MAX_DEVICES = 16
_ID_DIGITS = 12  # as docker ps and crictl ps print it

_CAUSES = {
    "reload": "daemon-reload",
    "reexec": "daemon-reexec",
    "property": "set-property",
    "runtime": "container update",
    "manual": "by hand",
}


class Phrases(dict[str, str]):
    """What the templates of the kinds may name: the event's fields, cleaned, and who, devices, by and after."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__((key, clean(text(value), _LIMIT)) for key, value in fields.items() if value is not None)
        self["who"] = _who(self)
        self["devices"] = _listed(fields.get("devices") or ())
        self["by"] = _by(self)
        self["after"] = f" after {elapsed(fields['outage_usec'])}" if "outage_usec" in self else ""

    def __missing__(self, key: str) -> str:
        """Stand in for a field that somebody forgot: the message must come out."""
        return f"unknown {key}"


def text(value: object) -> str:
    """Return a field's value as text; of an enumeration its value."""
    return str(value.value) if isinstance(value, enum.Enum) else str(value)


def elapsed(usec: int) -> str:
    """Return a time as people say it: 850 µs, 3.1 ms, 42 ms, 2.5 s, 3 min 20 s, 2 h 5 min."""
    if usec < 1000:  # noqa: PLR2004 - µs in a ms
        return f"{usec} µs"
    seconds = usec / 1_000_000
    if seconds < 1:
        return f"{_short(seconds * 1000)} ms"
    if seconds < 60:  # noqa: PLR2004 - s in a min
        return f"{_short(seconds)} s"
    minutes, seconds = divmod(int(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - min in an h
        return f"{minutes} min {seconds} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:.0f}"  # noqa: PLR2004 - two digits are enough


def _who(fields: Mapping[str, str]) -> str:
    identity = " ".join(part for part in (fields.get("runtime"), fields.get("container", "")[:_ID_DIGITS]) if part)
    name = "/".join(fields[part] for part in ("namespace", "pod", "name") if part in fields)
    if name and identity:
        return f"{name} ({identity})"
    return name or identity or fields.get("scope") or "a container"


def _listed(devices: object) -> str:
    names = [clean(text(device)) for device in devices] if isinstance(devices, (tuple, list)) else [text(devices)]
    if len(names) > _MAX_DEVICES:
        names[_MAX_DEVICES:] = [f"{len(names) - _MAX_DEVICES} more"]
    return ", ".join(names) or "its devices"


def _by(fields: Mapping[str, str]) -> str:
    pid: Optional[str] = fields.get("writer_pid")
    details = [f"pid {pid}"] if pid not in {None, "1"} else []
    cause = _CAUSES.get(fields.get("cause", ""))
    if cause:
        details.append(cause)
    writer = fields.get("writer", "an unknown program")
    return f"by {writer} ({', '.join(details)})" if details else f"by {writer}"
