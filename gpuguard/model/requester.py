"""Whom something was done for, in words for people: from a process and its ancestors. Pure.

Of a command line only what is known to be harmless is told: a verb, a unit, a script's name. The rest may be secret.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Optional

from gpuguard.model.process import Process
from gpuguard.model.request import Request, request_of

__all__ = ["Request", "chain", "request_of", "text"]

_MOST = 8
_LONGEST = 96
_ARROW = "←"
_REPLACEMENT = "\ufffd"
_LEFT_OUT = "…"
_SHORT = 12  # digits of a container's id
_ID = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")

_SHELL = re.compile(r"-?(?:ba|da|z|k|mk|a|fi)?sh")
_INTERPRETER = re.compile(r"(?:python|platform-python|pypy|perl|ruby|node)[\d.]*")
# Options of theirs that take the next argument (bash(1), python3(1)), and those with which there is no script.
_TAKING = frozenset({"-o", "+o", "-O", "+O", "--rcfile", "--init-file", "-W", "-X"})
_NO_SCRIPT = re.compile(r"-[A-Za-z]{0,3}[ceE]|-")
_NO_SHELL_SCRIPT = re.compile(r"-[A-Za-z]{0,3}[cs][A-Za-z]{0,3}|-")
_MODULE = "-m"

# Where dpkg keeps and runs the scripts of packages (deb-postinst(5)); those of a package that is being unpacked have no
# name yet. rpm writes a scriptlet to a file of no telling name.
_DPKG_SCRIPT = re.compile(r"/dpkg/info/([^/]+)\.(preinst|postinst|prerm|postrm|config)$")
_DPKG_UNPACKED = re.compile(r"/dpkg/tmp\.ci/(preinst|postinst|prerm|postrm|config)$")
_RPM_SCRIPT = re.compile(r"/rpm-tmp\.[^/]+$")
_DPKG = "dpkg "
_RPM = "rpm scriptlet"
# debconf(7): runs the package's script again below itself
_DEBCONF = "/debconf/frontend"
# What packages' scripts call, which says no more than the script that called it.
_HELPERS = frozenset(
    {"deb-systemd-helper", "deb-systemd-invoke", "invoke-rc.d", "update-rc.d", "systemd-update-helper"}
)

_RUNTIME_VERBS = frozenset({
    *("create", "run", "start", "stop", "restart", "update", "delete", "rm", "kill", "exec", "pause", "resume"),
    *("unpause", "restore", "configure", "container", "createRuntime", "prestart"),
})  # fmt: skip
_WITH_VERBS = frozenset({
    *("runc", "crun", "youki", "docker-runc", "nvidia-container-runtime", "docker", "podman", "nerdctl", "ctr"),
    *("crictl", "nvidia-container-cli", "nvidia-ctk", "nvidia-cdi-hook"),
})  # fmt: skip


def chain(lineage: Sequence[Process]) -> tuple[str, ...]:
    """Return who asked, nearest first; the last is the unit, session or container that it runs in, if it runs in one.

    At most 8 names of at most 96 printable characters each.
    """
    names: list[str] = []
    for process in lineage:
        name = _name(process)
        if name not in _HELPERS and not _told(name, names):
            names.append(name)
    if lineage and not names:
        names.append(_name(lineage[0]))
    end = next(filter(None, map(_place, lineage)), None)
    room = _MOST if end is None else _MOST - 1
    if len(names) > room:
        names = [*names[: room - 2], _LEFT_OUT, names[-1]]
    return tuple(map(_clean, names if end is None else [*names, end]))


def text(names: Sequence[str]) -> str:
    """Return a chain in one line: "systemctl daemon-reload ← bash ← session-3.scope"; "" for none."""
    return f" {_ARROW} ".join(names)


def _name(process: Process) -> str:
    asked = request_of(process.command)
    if asked is not None:
        return " ".join(
            [PurePosixPath(process.command[0]).name, asked.word, *filter(None, [asked.unit]), *asked.properties]
        )
    script = _script(process)
    if script is not None:
        return _script_name(script)
    if process.program in _WITH_VERBS:
        verb = next((argument for argument in process.command[1:] if argument in _RUNTIME_VERBS), None)
        return process.program if verb is None else f"{process.program} {verb}"
    return process.program


def _script(process: Process) -> Optional[str]:
    """Return the path of the script that a process runs, or a module's name; None for a program of its own."""
    shell, interpreter = _SHELL.fullmatch(process.program), _INTERPRETER.fullmatch(process.program)
    if shell is None and interpreter is None:
        return process.command[0] if process.command and _of_a_package(process.command[0]) else None
    if not process.command:  # the kernel names a process after the script
        return process.name
    left = iter(process.command[1:])
    for argument in left:
        if argument == _MODULE and interpreter is not None:
            return next(left, None)
        if (_NO_SCRIPT if shell is None else _NO_SHELL_SCRIPT).fullmatch(argument):
            return None
        if argument in _TAKING:
            next(left, None)
        elif argument == "--" or argument[:1] not in {"-", "+"}:
            script = next(left, None) if argument == "--" else argument
            return next(left, script) if script is not None and script.endswith(_DEBCONF) else script
    return None


def _of_a_package(path: str) -> bool:
    return any(form.search(path) for form in (_DPKG_SCRIPT, _DPKG_UNPACKED, _RPM_SCRIPT))


def _script_name(path: str) -> str:
    found = _DPKG_SCRIPT.search(path)
    if found is not None:
        return f"{_DPKG}{found[2]} of {found[1].partition(':')[0]}"
    found = _DPKG_UNPACKED.search(path)
    if found is not None:
        return f"{_DPKG}{found[1]}"
    return _RPM if _RPM_SCRIPT.search(path) else PurePosixPath(path).name or path


def _told(name: str, names: Sequence[str]) -> bool:
    """Whether the name before it says this already."""
    if not names:
        return False
    return (
        name == names[-1] or (name == "dpkg" and names[-1].startswith(_DPKG)) or (name == "rpm" and names[-1] == _RPM)
    )


def _place(process: Process) -> Optional[str]:
    """Return what it runs in: a container, or a unit of systemd's."""
    if process.container is not None:
        return f"{process.container.runtime} container {process.container.id[:_SHORT]}"
    return "a container" if process.contained else process.unit


def _clean(name: str) -> str:
    """Return a name that can be printed, and mistaken for nothing else in a chain."""
    name = _ID.sub(lambda found: found[0][:_SHORT] + _LEFT_OUT, name)
    cut = name if len(name) <= _LONGEST else name[: _LONGEST - 1] + _LEFT_OUT
    return "".join(letter if letter.isprintable() and letter != _ARROW else _REPLACEMENT for letter in cut)
