"""A container that may mount cgroup v1's device controller allows itself more, or writes there without end.

What it has by that it has by its own doing: gpuguard neither learns it, nor gives it back, nor declares it.
"""

from __future__ import annotations

import shlex
import sys
import time

import pytest

from tests.e2e import gate
from tests.e2e.attacks.arena import ADMIN, TOOLS, Arena, Suspect
from tests.lab.devices import CTL, GPU0, GPU1, Device
from tests.lab.poll import until

pytestmark = [pytest.mark.cgroup("v1"), pytest.mark.invariant(1)]

OWN = "own=/cg$(sed -n 's/.*:devices://p' /proc/self/cgroup)"
MOUNT = f"PATH=/bin; mkdir -p /cg; mount -t cgroup -o devices none /cg; {OWN}"
ALLOW = "echo 'c 195:1 rw' >$own/devices.allow; echo 'c 195:255 rwm' >$own/devices.allow"
MADE = (GPU1, CTL)
ODD = Device("/dev/odd", 77, 7)
"""No GPU: a number that nobody guards."""


def assert_taken_by_a_reload(arena: Arena, *suspects: Suspect) -> None:
    """Assert that the next rewrite takes what containers have given themselves, and that it stays so."""
    arena.node.run(["systemctl", "daemon-reload"])
    arena.guard.repair()
    arena.guard.await_rounds(3)
    arena.assert_nothing_gained(*suspects)


def test_what_it_allows_itself_once_it_is_settled(arena: Arena) -> None:
    """A container whose entitlement is complete: single rules, one for all GPUs, one for everything."""
    suspect = arena.enter(ADMIN)
    suspect.sh(MOUNT)
    for more in (ALLOW, "echo 'c 195:* rwm' >$own/devices.allow", "echo 'c *:* rwm' >$own/devices.allow"):
        suspect.sh(f"{OWN}; {more}")
        assert gate.has(suspect.cgroup, GPU1)
        arena.guard.await_rounds(3)
        assert_taken_by_a_reload(arena, suspect)
    arena.withstand(suspect)


def test_what_it_allows_itself_as_its_first_act(arena: Arena) -> None:
    """The first process does so before anything is settled: itself, or by a child that has ended when one looks."""
    suspects = [
        arena.enter(ADMIN, init=f"{MOUNT}; {ALLOW}", wait=False),
        arena.enter(ADMIN, init=f"{MOUNT}; ({ALLOW})", wait=False),
        arena.enter(ADMIN, init=f"{MOUNT}; for i in 1 2 3 4 5 6 7 8 9; do ({ALLOW}); sleep 0.1; done", wait=False),
        arena.enter(ADMIN, (), init=f"{MOUNT}; ({ALLOW})", wait=False),
    ]
    for suspect in suspects:
        until(lambda s=suspect: gate.has(s.cgroup, CTL), 20, "the rules")  # type: ignore[misc]
    arena.guard.await_rounds(8)
    arena.assert_nothing_gained(*suspects, made=MADE)
    assert_taken_by_a_reload(arena, *suspects)
    arena.withstand(*suspects)


def test_what_it_had_allowed_itself_before_gpuguard_came(arena: Arena) -> None:
    """At a cold start such rules are in force, and nobody has seen who wrote them."""
    suspects = [arena.enter(ADMIN), arena.enter(ADMIN, ())]
    for suspect in suspects:
        suspect.sh(f"{MOUNT}; {ALLOW}")
    arena.restart_cold()
    arena.guard.await_rounds(8)
    for suspect in suspects:
        assert gate.has(suspect.cgroup, GPU1), "nothing is taken away either"
        arena.assert_nothing_gained(suspect, made=MADE)
    assert_taken_by_a_reload(arena, *suspects)
    arena.withstand(*suspects)


def test_what_it_had_allowed_itself_with_files_that_are_hard_to_read(arena: Arena) -> None:
    """An environment of more than a megabyte; and one that is 4 MB in config.json, where each `<` takes six bytes."""
    large = [f"--env=PAD{number}={'x' * 125_000}" for number in range(9)]
    larger = [f"--env=PAD{number}={'<' * 125_000}" for number in range(7)]
    init = f"{MOUNT}; {ALLOW}"
    suspects = [arena.enter((*ADMIN, *env), (), init=init, wait=False) for env in (large, larger)]
    for suspect in suspects:
        until(lambda s=suspect: gate.has(s.cgroup, CTL), 20, "the rules")  # type: ignore[misc]
    arena.guard.await_rounds(8)
    arena.assert_nothing_gained(*suspects, made=MADE)
    arena.restart_cold()
    arena.guard.await_rounds(8)
    arena.assert_nothing_gained(*suspects, made=MADE)
    assert all(gate.has(suspect.cgroup, GPU1) for suspect in suspects), "nothing is taken away either"
    # Of the one nothing can be read, and that is why nothing of it is believed.
    assert "has more than" in arena.guard.run("explain", suspects[1].scope).stdout
    assert_taken_by_a_reload(arena, *suspects)
    arena.withstand(*suspects)


# The daemon, for which a container is no longer young after two seconds instead of a minute.
_SOON = """
import sys
from gpuguard.cli.main import main
from gpuguard.guard import orders
orders._YOUNG = 2.0
sys.exit(main(sys.argv[1:]))
"""


def test_what_it_allows_itself_when_nobody_watches_any_more(arena: Arena) -> None:
    """A container without a GPU that is older than a minute: its list is not watched from write to write any more."""
    suspects = [arena.enter(ADMIN, ()), arena.enter(ADMIN, ())]
    arena.restart_cold([sys.executable, "-c", _SOON])
    time.sleep(4)
    suspects[0].sh(f"{MOUNT}; {ALLOW}")
    suspects[1].sh(f"{MOUNT}; ({ALLOW})")
    arena.guard.await_rounds(8)
    arena.assert_nothing_gained(*suspects, made=MADE)
    assert_taken_by_a_reload(arena, *suspects)


def test_what_is_no_gpu(arena: Arena) -> None:
    """Other devices that it has allowed itself are not declared along with its GPU, which would make them last."""
    suspect = arena.enter(ADMIN, init=f"{MOUNT}; echo 'c 77:7 rw' >$own/devices.allow", wait=False)
    until(lambda: gate.has(suspect.cgroup, ODD), 20, "the rule")
    arena.guard.await_state(suspect.scope, "protected")
    assert [entry for entry in gate.declared(arena.node, suspect.scope) if "77:7" in entry] == []
    arena.node.run(["systemctl", "daemon-reload"])
    arena.guard.await_rounds(2)
    assert arena.prober.open(suspect.cgroup, ODD).denied


# The oldest process of the group and of those directly below says whether a container's own program has begun. This one
# leaves for a group two levels down, and leaves a child that has executed nothing under the name of runc's.
_STILL_STARTING = """
import ctypes, os, pathlib, time
[group] = [line for line in open("/proc/self/cgroup") if ":devices:" in line]
own = pathlib.Path("/cg" + group.split(":", 2)[2].strip())
deep = own / "a" / "b"
deep.mkdir(parents=True)
if os.fork() == 0:
    ctypes.CDLL(None).prctl(15, b"runc:[2:INIT]", 0, 0, 0)
    time.sleep(8)
    os._exit(0)
(deep / "cgroup.procs").write_text(str(os.getpid()))
for _ in range(60):
    for rule in ("c 195:1 rw", "c 195:255 rwm"):
        (own / "devices.allow").write_text(rule)
    time.sleep(0.05)
os.execv("/bin/sleep", ["/bin/sleep", "1000000"])
"""


def test_a_container_that_seems_to_start_for_ever(arena: Arena) -> None:
    """It makes its first process one that has executed nothing, so that its own writes are taken for a hook's."""
    init = f"{MOUNT}; {_python(_STILL_STARTING)}"
    suspects = [arena.enter((*ADMIN, *TOOLS), given, init=init, wait=False) for given in ((GPU0,), ())]
    for suspect in suspects:
        until(lambda s=suspect: gate.has(s.cgroup, CTL), 20, "the rules")  # type: ignore[misc]
    arena.guard.await_rounds(10)
    arena.assert_nothing_gained(*suspects, made=MADE)
    until(lambda: all(_childless(suspect) for suspect in suspects), 30, "the end of the impostor")
    arena.guard.await_rounds(10)
    arena.assert_nothing_gained(*suspects, made=MADE)
    arena.withstand(*suspects, made=MADE, heals=False)


# It leaves its control group in every hierarchy, so that what its runtime has noted of it does not seem to be of this
# run, and leaves a child behind.
_LEFT = """
import os, pathlib
own = None
if os.fork() == 0:
    os.execv("/bin/sleep", ["/bin/sleep", "1000000"])
for number, line in enumerate(open("/proc/self/cgroup")):
    _, controllers, group = line.strip().split(":", 2)
    at = pathlib.Path(f"/cg{number}")
    at.mkdir()
    kind = f"-t cgroup -o {controllers}" if "=" not in controllers else f"-t cgroup -o none,{controllers}"
    if os.system(f"mount {kind if controllers else '-t cgroup2'} none {at}"):
        continue
    if controllers == "devices":
        own = at / group[1:]
    (at / "cgroup.procs").write_text(str(os.getpid()))
for rule in ("c 195:1 rw", "c 195:255 rwm"):
    (own / "devices.allow").write_text(rule)
os.execv("/bin/sleep", ["/bin/sleep", "1000000"])
"""


def test_a_first_process_that_has_left(arena: Arena) -> None:
    """Its specification cannot be believed any more: that makes nobody trustworthy who was not."""
    suspects = [arena.enter((*ADMIN, *TOOLS), given, init=_python(_LEFT), wait=False) for given in ((GPU0,), ())]
    for suspect in suspects:
        until(lambda s=suspect: gate.has(s.cgroup, CTL), 20, "the rules")  # type: ignore[misc]
        assert suspect.container is not None
        groups = arena.node.path(f"/proc/{suspect.container.pid}/cgroup").read_text(encoding="utf-8")
        assert suspect.scope not in groups
    arena.guard.await_rounds(10)
    arena.assert_nothing_gained(*suspects, made=MADE)
    arena.restart_cold()
    arena.guard.await_rounds(10)
    arena.assert_nothing_gained(*suspects, made=MADE)
    assert_taken_by_a_reload(arena, *suspects)
    for suspect in suspects:
        assert suspect.container is not None
        arena.node.run(["kill", "-9", str(suspect.container.pid)])


def _python(program: str) -> str:
    """Return shell that becomes a program of Python."""
    return f"exec /usr/bin/python3 -c {shlex.quote(program)}"


def _childless(suspect: Suspect) -> bool:
    return not (suspect.cgroup / "cgroup.procs").read_text().split()


def test_writes_without_end(arena: Arena) -> None:
    """Thousands of writes to its own list, of the same rules and of ever new ones, and its devices on and off."""
    suspect = arena.enter(ADMIN)
    suspect.sh(
        f"{MOUNT};"
        "(while :; do for f in allow deny; do echo 'c 195:1 rw' >$own/devices.$f; done; done) >/dev/null 2>&1 &"
        '(i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo "c 240:$i rw" >$own/devices.allow; done) >/dev/null 2>&1 &'
        "(while :; do echo a >$own/devices.deny; echo 'c 1:3 rwm' >$own/devices.allow; done) >/dev/null 2>&1 &"
    )
    for _ in range(3):
        arena.guard.await_rounds(3)
        arena.assert_honest_heals()
        assert arena.learnt(suspect) <= {GPU0.rule}
    suspect.sh("kill -9 -1")
    arena.guard.await_rounds(3)
    arena.withstand(suspect, made=(GPU1,), heals=False)
