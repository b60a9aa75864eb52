"""The programs that were started last: who a process was that is gone by the time somebody asks. Pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Callable, Optional

from gpuguard.model.process import Process

_ANCESTORS = 16

# By the kernel's names, of 15 bytes at most: programs that ask systemd, that rewrite device lists, and shells and
# interpreters, which may do either. A script that is executed by its own path has a name of its own, and is missed.
_TELLING = re.compile(
    r"(?:systemctl|telinit|init|busctl|gdbus|dbus-send|systemd-run|deb-systemd-.*|invoke-rc\.d"
    r"|runc|crun|youki|docker|docker-runc|podman|nerdctl|ctr|crictl|nvidia-.*"
    r"|-?(?:ba|da|k|mk|z|a|fi)?sh|(?:python|pypy|perl|ruby|node)[\d.]*"
    r"|tee|dd|cgset|cgexec|cgclassify|bpftool|.*(?:post|pre)(?:inst|rm))"
)


@dataclass(frozen=True)
class Execution:
    """A process at the moment when it had started a program, and its ancestors as far as they were read then.

    `at` is in seconds of CLOCK_MONOTONIC; `asks`: it is a program that asks systemd and waits for the answer.
    """

    at: float
    line: tuple[Process, ...]
    asks: bool = False


def telling(name: str) -> bool:
    """Whether a process of this name may be what somebody asks for later."""
    return _TELLING.fullmatch(name) is not None


class Recent:
    """A bounded memory: the last `most` programs, and of those that ask systemd the last `asking`."""

    def __init__(self, most: int = 256, asking: int = 64) -> None:
        self._all: deque[Execution] = deque(maxlen=most)
        self._asking: deque[Execution] = deque(maxlen=asking)

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._all)

    def note(self, execution: Execution) -> None:
        """Remember one; they come in the order of their times."""
        self._all.append(execution)
        if execution.asks:
            self._asking.append(execution)

    def by_pid(self, pid: int, at: float, longest: float = 60.0) -> tuple[Process, ...]:
        """Return who had that number at that time, and its ancestors, nearest first; () where that is not known.

        What was started more than `longest` seconds before is passed over: another may have taken the number, and
        started no program of its own.
        """
        found = self._find(pid, at, at - longest)
        return () if found is None else self._lengthened(found)

    def requesters(self, wanted: Callable[[tuple[str, ...]], bool], since: float) -> list[tuple[Process, ...]]:
        """Return who began to ask systemd for something since then, and their ancestors; the newest first.

        `wanted` tells by a command line whether it may be the one.
        """
        return [
            self._lengthened(execution)
            for execution in reversed(self._asking)
            if execution.at >= since and wanted(execution.line[0].command)
        ]

    def _find(self, pid: int, at: float, since: float) -> Optional[Execution]:
        for execution in reversed(self._all):
            if since <= execution.at <= at and execution.line[0].pid == pid:
                return execution
        return None

    def _lengthened(self, execution: Execution) -> tuple[Process, ...]:
        """Add the ancestors that are remembered."""
        line = list(execution.line)
        for _ in range(_ANCESTORS):
            parent = self._find(line[-1].parent, execution.at, float("-inf"))
            if parent is None or len(line) >= _ANCESTORS:
                break
            line.append(parent.line[0])
        return tuple(line)
