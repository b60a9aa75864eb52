"""Processes of a container that go by the names of systemd's, of runtimes' and of hooks'."""

from __future__ import annotations

from functools import partial

import pytest

from tests.e2e.attacks.arena import ADMIN, ROOT, TOOLS, Arena, Suspect
from tests.lab.devices import GPU1
from tests.lab.poll import until

pytestmark = pytest.mark.invariant(1)

NAMES = (
    *(
        "systemd",
        "runc:[2:INIT]",
        "runc:[1:CHILD]",
        "crun",
        "runc",
        "youki:[2:INIT]",
        "conmon",
        "dockerd",
        "containerd",
    ),
    *("nvidia-container-runtime-hook", "nvidia-container-cli", "systemctl", "gpuguard", ") R 1 1 (", "a\nb\x1b[2J"),
)

# Each name has a process that has executed nothing since it was forked and one that has executed a program of that
# name, with the argument of somebody who reloads systemd: a shell, which takes that for the name of a script.
_DISGUISED = """
import ctypes, os, shutil, sys, time
libc = ctypes.CDLL(None)
for number, name in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        libc.prctl(15, name.encode(), 0, 0, 0)
        time.sleep(1000)
    if os.fork() == 0:
        os.chdir("/disguise")
        path = shutil.copy("/usr/bin/sh", name)
        os.execv(path, [name, "daemon-reload"])
print("ready")
"""

# On cgroup v1 it also writes its own list, and is gone when one looks who it was.
_WRITER = """
import ctypes, os, sys
[group] = [line for line in open("/proc/self/cgroup") if ":devices:" in line]
own = "/cg" + group.split(":", 2)[2].strip()
for name in sys.argv[1:]:
    for stays in (True, False):
        child = os.fork()
        if child == 0:
            ctypes.CDLL(None).prctl(15, name.encode(), 0, 0, 0)
            with open(own + "/devices.allow", "w") as allow:
                allow.write("c 195:1 rw")
            if stays:
                import time
                time.sleep(0.05)
            os._exit(0)
        os.waitpid(child, 0)
print("ready")
"""


def disguised(suspect: Suspect) -> bool:
    """Whether one of a container's processes looks as if it reloaded systemd."""
    return "systemctl daemon-reload" in suspect.sh(r"cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' ' '")


def test_processes_under_borrowed_names(arena: Arena) -> None:
    """Names are nothing: such a container settles, is protected, and is nobody's runtime."""
    suspects = arena.enter((*ROOT, *TOOLS)), arena.enter((*ROOT, *TOOLS), ())
    for suspect in suspects:
        suspect.sh("mkdir /disguise; echo 'sleep 1000; :' >/disguise/daemon-reload")
        assert suspect.container is not None
        done = suspect.container.exec(
            ["/bin/sh", "-c", '/usr/bin/python3 -c "$0" "$@" >/dev/null 2>&1 </dev/null', _DISGUISED, *NAMES]
        )
        assert done.returncode == 0, done.stderr
        until(partial(disguised, suspect), 20, "the disguise")
    arena.withstand(*suspects)


def test_a_first_process_under_a_runtimes_name(arena: Arena) -> None:
    """A first process that is named as runc's has executed a program all the same: its container's start is over."""
    suspect = arena.enter(ROOT, init="printf 'runc:[2:INIT]' >/proc/self/comm")
    arena.withstand(suspect)


@pytest.mark.cgroup("v1")
def test_writers_under_borrowed_names(arena: Arena) -> None:
    """What such a process writes to the container's own list is neither a runtime's nor a hook's nor the host's."""
    mount = "PATH=/bin; mkdir -p /cg; mount -t cgroup -o devices none /cg"
    suspects = [arena.enter((*ADMIN, *TOOLS), (), init=mount), arena.enter((*ADMIN, *TOOLS), init=mount)]
    for suspect in suspects:
        assert suspect.python(_WRITER, *NAMES) == "ready\n"
        arena.guard.await_rounds(5)
        arena.assert_nothing_gained(suspect, made=(GPU1,))
    assert arena.guard.total("gpuguard_drift_total", kind="lost", writer="crun") == 0
    arena.node.run(["systemctl", "daemon-reload"])
    until(lambda: not any(arena.learnt(suspect) - {"c 195:0"} for suspect in suspects), 20, "nothing more")
    arena.withstand(*suspects)
