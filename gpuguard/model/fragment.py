"""What a unit's files say of its device permissions: what systemd will know after a reload.

Follows systemd's conf-parser.c and load-fragment.c, compared with what systemd 252 makes of the same texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Optional

from gpuguard.errors import RuleError
from gpuguard.model.rule import Access
from gpuguard.model.unit import DeviceAllow, DevicePolicy

# systemd ends a line at NUL, and takes no other character of str.splitlines() or str.strip() as white space.
_LINE_END = re.compile(r"\r\n|\n\r|[\n\r\0]")
_SPACE = " \t\n\r"
# systemd reads no further in a file after bytes that are not UTF-8, or after a section header that is not one.
_ENDS_FILE = re.compile(r"""[\ud800-\udfff]|^\[.*(?<!\])$|^\[.*[\x01-\x1f\x7f"'\\]""")
_VALUE = re.compile(r"""((?:[^ \t"'\\]|"[^"\\]*"|'[^'\\]*'|\\.)+)(?:[ \t]+(.*))?""")
_QUOTED = re.compile(r""""([^"\\]*)"|'([^'\\]*)'|\\(.)""")


def parse_fragments(unit: str, texts: Iterable[str]) -> tuple[DevicePolicy, tuple[DeviceAllow, ...]]:
    """Return DevicePolicy= and DeviceAllow= of a unit from its fragment and then its drop-ins, in their order.

    The texts are the files decoded as UTF-8, errors as surrogates. Like systemd, this ignores what it
    cannot read and raises nothing. Entries come in the order of the files; a path may come twice.
    """
    section = unit.rpartition(".")[2].capitalize()
    policy = DevicePolicy.AUTO
    entries: list[DeviceAllow] = []
    for text in texts:
        for key, value in _assignments(text, section):
            if key == "DevicePolicy":
                policy = _policy(value) or policy
            elif key == "DeviceAllow" and not value:
                entries.clear()
            elif key == "DeviceAllow":
                entry = _device_allow(value)
                if entry is not None:
                    entries.append(entry)
    return policy, tuple(entries)


def _assignments(text: str, wanted: str) -> Iterator[tuple[str, str]]:
    section = ""
    for line in _logical_lines(text.removeprefix("\ufeff")):
        if _ENDS_FILE.search(line):
            return
        if line.startswith("["):
            section = line[1:-1]
            continue
        key, equals, value = line.partition("=")
        if equals and section == wanted:
            yield key.rstrip(_SPACE), value.lstrip(_SPACE)


def _logical_lines(text: str) -> Iterator[str]:
    pending = ""
    for line in _LINE_END.split(text):
        # A comment does not end a continued line.
        if line.lstrip(_SPACE).startswith(("#", ";")):
            continue
        pending += line
        backslashes = len(pending) - len(pending.rstrip("\\"))
        if backslashes % 2:
            pending = pending[:-1] + " "
            continue
        yield pending.strip(_SPACE)
        pending = ""
    yield pending.strip(_SPACE)


def _policy(value: str) -> Optional[DevicePolicy]:
    try:
        return DevicePolicy(value)
    except ValueError:
        return None


def _device_allow(value: str) -> Optional[DeviceAllow]:
    match = _VALUE.fullmatch(value)
    if match is None:
        return None
    path: Optional[str] = _QUOTED.sub(lambda quoted: quoted[1] or quoted[2] or quoted[3] or "", match[1])
    # A specifier other than %% stays as it stands: the entry exists, though nobody can say for what.
    path = path.replace("%%", "%") if path else None
    if path and not path.startswith(("char-", "block-")):
        path = _device_path(path)
    if not path:
        return None
    try:
        return DeviceAllow(path, Access.parse(match[2] or "rwm"))
    except RuleError:
        return None


def _device_path(path: str) -> Optional[str]:
    parts = [part for part in path.split("/") if part not in {"", "."}]
    simple = "/" + "/".join(parts)
    # The directories themselves pass: they allow nothing, but make the list a list.
    below = f"{simple}/".startswith(("/dev/", "/run/systemd/inaccessible/"))
    return simple if below and path.startswith("/") and ".." not in parts else None
