"""An administrator's drop-in that takes away what a declaration adds."""

from __future__ import annotations

from pathlib import Path

from tests.lab.sim.node import SimNode


def overrule(node: SimNode) -> Path:
    """Write one for all Docker containers of a node; it leaves them /dev/null alone. Return the file."""
    drop_in = node.path("/etc/systemd/system/docker-.scope.d/90-site.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text("[Scope]\nDeviceAllow=\nDeviceAllow=/dev/null rwm\n")
    return drop_in
