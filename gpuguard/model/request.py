"""What a command line asks systemd for, of all that makes it write device rules. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Optional

# Verbs after which systemctl asks for a reload of its own accord (systemctl(1), --no-reload).
_ENABLING = frozenset({
    *("enable", "disable", "reenable", "preset", "preset-all", "mask", "unmask", "link", "revert"),
    *("add-wants", "add-requires", "set-default", "edit"),
})  # fmt: skip
_VERBS = {"daemon-reload": "reload", "daemon-reexec": "reexec", "set-property": "property"}
_VERBS.update(dict.fromkeys(_ENABLING, "reload"))
# telinit(8), which init is when it is not PID 1
_TELINIT = {"q": "reload", "Q": "reload", "u": "reexec", "U": "reexec"}
# The calls by which the bus is asked for the same, of org.freedesktop.systemd1(5).
_METHODS = {
    "Reload": "reload",
    "Reexecute": "reexec",
    "SetUnitProperties": "property",
    "SetProperties": "property",
}
# Runtimes that have systemd change a container's unit; the id is the last argument (runc-update(8)).
_RUNTIMES = frozenset({"runc", "crun", "youki"})
_UPDATE = "update"
_BUS_PROGRAMS = frozenset({"busctl", "gdbus", "dbus-send"})
_SYSTEMD = "org.freedesktop.systemd1"

# Options of systemctl that take the next argument, where it is not joined to them.
_TAKING = frozenset({
    *("--type", "--state", "--property", "--job-mode", "--check-inhibitors", "--kill-whom", "--kill-who"),
    *("--kill-value", "--signal", "--what", "--lines", "--output", "--preset-mode", "--root", "--image"),
    *("--image-policy", "--host", "--machine", "--capsule", "--legend", "--message", "--timestamp", "--when"),
    *("--boot-loader-menu", "--boot-loader-entry", "--reboot-argument", "--drop-in", "--kill-subgroup"),
})  # fmt: skip
_TAKING_LETTERS = frozenset("tpPsnoHMC")
# Those with which it asks another systemd, or none.
_ELSEWHERE = frozenset(
    {"--user", "--global", "--root", "--image", "--host", "-H", "--machine", "-M", "--capsule", "-C"}
)
_NOTHING = frozenset({"--help", "-h", "--version"})

_SUFFIXES = (".scope", ".service", ".slice", ".socket", ".mount", ".swap")


@dataclass(frozen=True)
class Request:
    """What is asked of systemd.

    `cause`: reload, reexec, property or runtime. `word` is the verb or method as it was given. A property's change is
    that of one `unit`, None where it cannot be told; `properties` are the names that are set there, as far as is known.
    A runtime has one `container`'s unit changed.
    """

    cause: str
    word: str
    unit: Optional[str] = None
    properties: tuple[str, ...] = ()
    container: Optional[str] = None

    def concerns(self, unit: str) -> bool:
        """Whether it may have rewritten a unit's device rules: a reload those of all."""
        if self.container is not None:
            return unit.endswith(f"-{self.container}.scope")
        return self.unit is None or self.unit == unit


def request_of(command: Sequence[str]) -> Optional[Request]:
    """Read a command line. None for what makes this machine's systemd write no device rules, or is no request."""
    if not command:
        return None
    program, arguments = PurePosixPath(command[0]).name, command[1:]
    if program == "systemctl":
        return _systemctl(arguments)
    if program in {"telinit", "init"}:
        word = next((argument for argument in arguments if not argument.startswith("-")), "")
        return Request(_TELINIT[word], word) if word in _TELINIT else None
    if program in _RUNTIMES:
        named = _UPDATE in arguments[:-1] and not arguments[-1].startswith("-")
        return Request("runtime", _UPDATE, container=arguments[-1]) if named else None
    return _bus_call(arguments) if program in _BUS_PROGRAMS else None


def asks_for_rules(command: Sequence[str]) -> bool:
    """Whether a command line asks this machine's systemd for something that makes it write device rules."""
    return request_of(command) is not None


def _systemctl(arguments: Sequence[str]) -> Optional[Request]:
    options: set[str] = set()
    words = list(_words(arguments, options))
    cause = _VERBS.get(words[0]) if words else None
    if cause is None or options & (_ELSEWHERE | _NOTHING):
        return None
    verb, *rest = words
    if cause != "property":
        return None if verb in _ENABLING and "--no-reload" in options else Request(cause, verb)
    unit = _unit(rest[0]) if rest else None
    return Request(cause, verb, unit, tuple(each.partition("=")[0].removesuffix("+") for each in rest[1:]))


def _words(arguments: Sequence[str], options: set[str]) -> Iterator[str]:
    """Yield the arguments that are no options, which may stand anywhere (getopt_long(3)), and note the options."""
    left = iter(arguments)
    for argument in left:
        if argument == "--":
            yield from left
        elif argument.startswith("--"):
            name, joined, _ = argument.partition("=")
            options.add(name)
            if name in _TAKING and not joined:
                next(left, None)
        elif argument.startswith("-") and argument != "-":
            if _letters(argument[1:], options):
                next(left, None)
        else:
            yield argument


def _letters(letters: str, options: set[str]) -> bool:
    """Note options of one letter each; whether the last takes the next argument. One that takes any takes the rest."""
    for place, letter in enumerate(letters, 1):
        options.add(f"-{letter}")
        if letter in _TAKING_LETTERS:
            return place == len(letters)
    return False


def _unit(name: str) -> str:
    """Return a unit's whole name, which systemctl lets people leave the end off (systemctl(1))."""
    return name if name.endswith(_SUFFIXES) else f"{name}.service"


def _bus_call(arguments: Sequence[str]) -> Optional[Request]:
    """Read a call by busctl(1), gdbus(1) or dbus-send(1), where the method stands alone or after its interface."""
    if "--user" in arguments or "--session" in arguments or not any(_SYSTEMD in each for each in arguments):
        return None
    for place, argument in enumerate(arguments):
        interface, _, method = argument.rpartition(".")
        if method in _METHODS and (not interface or interface.partition("=")[2] or interface.startswith(_SYSTEMD)):
            cause = _METHODS[method]
            names = (each.removeprefix("string:").strip("'\"") for each in arguments[place + 1 :])
            unit = next((each for each in names if each.endswith(_SUFFIXES)), None) if cause == "property" else None
            return Request(cause, method, unit)
    return None
