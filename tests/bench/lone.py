"""The sentinel without its daemon: `python -m tests.bench.lone CONTROL_GROUP RULE…`, run in a node on cgroup v1.

Has it give back the RULEs, for ever, and throws away what it tells. Prints "ready" when it watches.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from gpuguard.model.rule import Rule
from gpuguard.model.write import Watched
from gpuguard.sentinel.command import command
from gpuguard.sentinel.wire import Ping, Pong, decode, encode

_ROOT = Path("/sys/fs/cgroup")


def main() -> None:
    """Start it, tell it what to watch, and listen until one of the two ends."""
    control_group, *rules = sys.argv[1:]
    inode = (_ROOT / "devices" / control_group.lstrip("/")).stat().st_ino
    watched = Watched(control_group, inode, undeclared=frozenset(map(Rule.parse, rules)))
    ours, theirs = socket.socketpair()
    fd = theirs.fileno()
    argv = command(fd, mode="v1", cgroup=str(_ROOT), proc="/proc", max_repairs=1000, window=0.1, pause=0.1)
    with subprocess.Popen(argv, pass_fds=[fd]):
        theirs.close()
        ours.sendall(encode(watched) + encode(Ping(1)))
        for line in ours.makefile("rb"):
            if isinstance(decode(line), Pong):
                print("ready", flush=True)


if __name__ == "__main__":
    main()
