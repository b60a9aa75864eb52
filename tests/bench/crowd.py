"""Many containers at once in a node, without an engine."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.errors import LabError
from tests.lab.node import ROOT, Node


@dataclass(frozen=True)
class Opens:
    """What the opener in one scope has seen; `last_denied` is of the monotonic clock, in seconds."""

    opens: int
    denied: int
    last_denied: float


class Crowd(AbstractContextManager["Crowd"]):
    """`count` scopes with a GPU, each with a process that opens it every `period` seconds (0: never).

    `known`: systemd was told of the GPU at the start. `rules`: what is written on cgroup v1 in the place of the usual.
    Raises LabError.
    """

    def __init__(
        self, node: Node, count: int, *, period: float = 0.0, known: bool = False, rules: Sequence[str] = ()
    ) -> None:
        program = ["env", "-C", str(ROOT), sys.executable, "-m", "tests.bench.inside", str(count), str(period)]
        self._process = node.popen([*program, str(int(known)), *rules], stdin=subprocess.PIPE, stderr=subprocess.STDOUT)
        line = self._line()
        if not line.startswith("["):
            raise LabError(f"the scopes did not start: {line}{self._end()}")
        self.names: list[str] = json.loads(line)
        controller = "" if node.mode == "v2" else "devices"
        self.cgroups: list[Path] = [
            node.path(f"/sys/fs/cgroup/{controller}/system.slice/{name}") for name in self.names
        ]

    def seen(self) -> list[Opens]:
        """Return what the openers have seen since this was asked before."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return [Opens(opens, denied, last / 1e9) for opens, denied, last in json.loads(self._line())]

    def __exit__(self, *_: object) -> None:
        """End all scopes."""
        self._end()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().decode(errors="replace")

    def _end(self) -> str:
        output, _ = self._process.communicate(timeout=60)
        return output.decode(errors="replace")
