"""The parts of speech of gpuguard's messages: who, what, by whom, for how long. Pure."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, Optional

from gpuguard.model.container_name import full_name, short_id
from gpuguard.report.clean import clean

# Longer ones are cut: a message is a line for people, the fields beside it have everything.
_LIMIT = 300
_MAX_MEMBERS = 16
_CUT = " … "
_ARROW = " ← "
_SYSTEMD = "systemd"
# systemd's own unit, which says nothing that its name does not.
_INIT = "init.scope"

_CAUSES = {
    "reload": "daemon-reload",
    "reexec": "daemon-reexec",
    "property": "set-property",
    "runtime": "container update",
    "manual": "by hand",
}
# The actions of a uevent (the kernel's kobject_actions, lib/kobject_uevent.c), of a driver or a device.
_ACTIONS = {
    "add": "has come",
    "remove": "has gone",
    "bind": "has got its driver",
    "unbind": "has lost its driver",
    "change": "has changed",
    "move": "has another name",
    "online": "is online",
    "offline": "is offline",
}
_SCHEDULING = {
    "rr": "in the real-time class (SCHED_RR)",
    "nice": "ahead of ordinary programs by its nice level",
    "normal": "like any ordinary program",
}


class Phrases(dict[str, str]):
    """What the templates of the kinds may name: the event's fields, cleaned, and what is made of several of them."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        super().__init__((key, clean(text(value), _LIMIT)) for key, value in fields.items() if value is not None)
        self["who"] = _who(self)
        self["devices"] = _listed(fields.get("devices") or (), "its devices")
        self["groups"] = _listed(fields.get("groups") or (), "below its own")
        self["by"] = _by(self, fields)
        self["after"] = f" after {elapsed(fields['outage_usec'])}" if "outage_usec" in self else ""
        self["why"] = f": {self['reason']}" if "reason" in self else ""
        self["happened"] = _ACTIONS.get(self.get("action", ""), self.get("action", "did something"))
        self["standing"] = _SCHEDULING.get(self.get("scheduling", ""), "in an unknown way")

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
    identity = " ".join(part for part in (fields.get("runtime"), short_id(fields.get("container", ""))) if part)
    name = full_name(*map(fields.get, ("namespace", "pod", "name")))
    if name and identity:
        return f"{name} ({identity})"
    return name or identity or fields.get("scope") or "a container"


def _listed(names: object, otherwise: str) -> str:
    return ", ".join(_members(names)) or otherwise


def _members(value: object) -> list[str]:
    members = [clean(text(member)) for member in value] if isinstance(value, (tuple, list)) else [clean(text(value))]
    if len(members) > _MAX_MEMBERS:
        members[_MAX_MEMBERS:] = [f"{len(members) - _MAX_MEMBERS} more"]
    return members


def _by(known: Mapping[str, str], fields: Mapping[str, Any]) -> str:
    """Return who did it, how, where, and for whom.

    "by systemd (daemon-reload) for systemctl daemon-reload ← apt-get", "by bash (pid 7, by hand) in a.scope via sudo".
    """
    pid: Optional[str] = known.get("writer_pid")
    details = [f"pid {pid}"] if pid not in {None, "1"} else []
    cause = _CAUSES.get(known.get("cause", ""))
    if cause:
        properties = _members(fields["property"]) if fields.get("property") else []
        details.append(f"{cause} of {', '.join(properties)}" if properties else cause)
    words = [f"by {known.get('writer', 'an unknown program')}"]
    if details:
        words.append(f"({', '.join(details)})")
    unit = known.get("writer_unit")
    if unit and unit != _INIT:
        words.append(f"in {unit}")
    if fields.get("requester"):
        words.append(_behind(text(fields["requester"]), known))
    return " ".join(filter(None, words))


def _behind(chain: str, known: Mapping[str, str]) -> str:
    """Return whom systemd did it for, or what another writer was started by, without what is said already."""
    writer = known.get("writer", _SYSTEMD)
    if writer == _SYSTEMD:
        return f"for {_middle_cut(chain)}"
    names = chain.split(_ARROW)
    names = names[names[0] == writer :]
    if names and names[-1] == known.get("writer_unit"):
        names.pop()
    return f"via {_middle_cut(_ARROW.join(names))}" if names else ""


def _middle_cut(line: str) -> str:
    """Return a line whose both ends matter more than its middle, cleaned: who asked, and what it all began with."""
    if len(line) > _LIMIT:
        half = (_LIMIT - len(_CUT)) // 2
        line = f"{line[:half]}{_CUT}{line[-half:]}"
    return clean(line, _LIMIT)
