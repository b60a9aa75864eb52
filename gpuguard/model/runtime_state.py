"""What a low-level runtime notes of each container that it has started: runc's state.json, crun's status. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Optional

from gpuguard.errors import SpecError
from gpuguard.model.json_text import parse_json

_BUNDLE = "bundle="
_PID = re.compile(r"[1-9][0-9]{0,9}\n?", re.ASCII)


@dataclass(frozen=True)
class RuntimeState:
    """Where the container's bundle lies, and its first process.

    `ticks` is when that started, as in field 22 of /proc/PID/stat; None where the runtime does not say.
    """

    bundle: str
    pid: int
    ticks: Optional[int] = None


def parse_runc_state(text: str) -> RuntimeState:
    """Read a state.json. Raises SpecError.

    The labels hold the annotations, which users choose, and the bundle after them (runc, specconv).
    """
    state = parse_json(text)
    bundle = ""
    for label in state.member("config").member("labels").texts():
        if label.startswith(_BUNDLE):
            bundle = label[len(_BUNDLE) :]
    return _state(bundle, state.member("init_process_pid").number(), state.member("init_process_start").number())


def parse_crun_status(text: str) -> RuntimeState:
    """Read a status. Raises SpecError. Older ones do not tell when the process started."""
    status = parse_json(text)
    ticks = status.member("process-start-time").number()
    return _state(status.member("bundle").text(), status.member("pid").number(), ticks)


def parse_pid(text: str) -> int:
    """Read the text of a pid file. Raises SpecError."""
    if _PID.fullmatch(text) is None:
        raise SpecError("it names no process")
    return int(text)


def _state(bundle: str, pid: Optional[int], ticks: Optional[int]) -> RuntimeState:
    if not bundle.startswith("/"):
        raise SpecError("it names no bundle")
    if pid is None or pid <= 0:
        raise SpecError("it names no first process")
    return RuntimeState(bundle, pid, ticks or None)
