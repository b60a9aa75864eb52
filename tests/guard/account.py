"""What was done to one scope of a simulated node since some moment."""

from __future__ import annotations

from typing import Any

from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope
from tests.lab.sim.tree import OUTSIDE


class Account:
    """What happened to a scope after this was made."""

    def __init__(self, node: SimNode, scope: SimScope) -> None:
        self._node = node
        self._scope = scope
        self._writes = len(scope.writes())
        self._calls = len(node.calls())

    def written(self) -> list[str]:
        """Return the rules that somebody other than systemd wrote, and how: "allow c 195:0 rw"."""
        writes = self._scope.writes()[self._writes :]
        return [f"{write.verb} {write.text}" for write in writes if write.writer == OUTSIDE]

    def by_systemd(self) -> list[str]:
        """Return what systemd wrote that a kernel would have taken."""
        writes = self._scope.writes()[self._writes :]
        return [f"{write.verb} {write.text}" for write in writes if write.writer != OUTSIDE and not write.error]

    def calls(self) -> list[dict[str, Any]]:
        """Return the calls that named the scope."""
        calls = self._node.calls()[self._calls :]
        return [call for call in calls if self._scope.name in map(str, call["body"])]

    def declared(self) -> list[list[str]]:
        """Return what entries each call set in the scope's DeviceAllow, e.g. "/dev/char/195:0 rw"."""
        return [
            [" ".join(entry) for entry in value]
            for call in self.calls()
            if call["member"] == "SetUnitProperties"
            for key, value in call["body"][2]
            if key == "DeviceAllow"
        ]
