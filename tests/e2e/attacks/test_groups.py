"""What a container that may mount control groups makes of its own: groups of odd names, many of them, and deep ones."""

from __future__ import annotations

import secrets
import time

import pytest

from gpuguard.kernel.devices_v1 import SHIELD
from tests.e2e import gate
from tests.e2e.attacks.arena import ADMIN, Arena, Suspect
from tests.lab.cgroups import remove
from tests.lab.devices import GPU0, GPU1
from tests.lab.poll import until

pytestmark = pytest.mark.invariant(1)

_V1 = "mount -t cgroup -o devices none /cg; own=/cg$(sed -n 's/.*:devices://p' /proc/self/cgroup)"
_V2 = "mount -t cgroup2 none /cg; own=/cg$(sed -n 's/^0:://p' /proc/self/cgroup)"
NAMES = (SHIELD, "container", f"libpod-payload-{'5' * 64}", f"docker-{'6' * 64}.scope", "init", "a/libpod-payload-1")
MANY, DEEP = 300, 20


def mount(arena: Arena) -> str:
    """Return shell that mounts the container's own control group, writable, and names it $own."""
    return f"mkdir -p /cg; {_V1 if arena.node.mode == 'v1' else _V2}"


def end_groups(suspect: Suspect) -> None:
    """Have a container bring all its processes back and remove its groups, so that its scope can end."""
    suspect.sh(
        "for procs in $(find $(cat /own) -mindepth 2 -name cgroup.procs); do"
        " for pid in $(cat $procs); do echo $pid >$(cat /own)/cgroup.procs || true; done; done;"
        "find $(cat /own) -mindepth 1 -depth -type d -exec rmdir {} ';' || true"
    )


def test_groups_named_as_others(arena: Arena) -> None:
    """Groups below its own that are named as gpuguard's, crun's, Podman's and Docker's are, with its processes in them.

    While there is one on cgroup v1, systemd can take nothing: that is its own affair, and no harm to anybody.
    """
    groups = dict(zip((arena.enter(ADMIN, (GPU0,) if number % 2 else ()) for number in range(len(NAMES))), NAMES))
    for suspect, name in groups.items():
        suspect.sh(
            f"{mount(arena)}; echo $own >/own; mkdir -p $own/{name}/{name};"
            f"for pid in 1 $$; do echo $pid >$own/{name}/{name}/cgroup.procs; done"
        )
        assert (suspect.cgroup / name / name / "cgroup.procs").read_text().split()
    arena.withstand(*groups, heals=False)
    for suspect, name in groups.items():
        arena.assert_denied(suspect.cgroup / name, suspect.cgroup / name / name)
        end_groups(suspect)
        if suspect.given:
            arena.guard.await_state(suspect.scope, "protected")
    arena.assert_nothing_gained(*groups)


def test_hundreds_of_groups(arena: Arena) -> None:
    """Three hundred groups side by side and twenty in each other, with a process in each of some, while losses come."""
    suspect = arena.enter(ADMIN)
    suspect.sh(
        f"{mount(arena)}; echo $own >/own; i=0;"
        f"while [ $i -lt {MANY} ]; do i=$((i+1)); mkdir $own/g$i; done;"
        f"deep=$own; i=0; while [ $i -lt {DEEP} ]; do i=$((i+1)); deep=$deep/container; mkdir $deep; done;"
        'for i in 1 2 3 4 5; do sh -c "echo \\$\\$ >$own/g$i/cgroup.procs; exec sleep 1000" & done;'
        'sh -c "echo \\$\\$ >$deep/cgroup.procs; exec sleep 1000" & sleep 0.2; echo 1 >$deep/cgroup.procs'
    )
    arena.withstand(suspect, heals=False)
    end_groups(suspect)
    arena.guard.await_state(suspect.scope, "protected")
    arena.assert_nothing_gained(suspect)


def test_groups_that_come_and_go(arena: Arena) -> None:
    """Groups made and removed as fast as can be, gpuguard's own shield among them, while losses come."""
    suspect = arena.enter(ADMIN)
    suspect.sh(
        f"{mount(arena)}; echo $own >/own;"
        f"while :; do mkdir $own/{SHIELD} $own/a $own/a/container; rmdir $own/a/container $own/a $own/{SHIELD}; done"
        " >/dev/null 2>&1 &"
    )
    arena.withstand(suspect, heals=False)
    suspect.sh("kill -9 -1")
    end_groups(suspect)
    arena.guard.await_state(suspect.scope, "protected")
    arena.assert_nothing_gained(suspect)


@pytest.mark.cgroup("v1")
def test_a_group_made_by_hand_beside_the_containers(arena: Arena) -> None:
    """A group named as a scope of Docker's that systemd has never heard of, made and filled by a container."""
    suspect = arena.enter(ADMIN)
    name = f"docker-{secrets.token_hex(32)}.scope"
    suspect.sh(
        f"{mount(arena)}; made=/cg/system.slice/{name}; mkdir $made; echo a >$made/devices.deny;"
        "echo 'c 1:3 rwm' >$made/devices.allow; echo 'c 195:1 rw' >$made/devices.allow;"
        f'sh -c "echo \\$\\$ >$made/cgroup.procs; exec sleep 1000" & sleep 0.2'
    )
    made = suspect.cgroup.with_name(name)
    assert gate.has(made, GPU1)
    arena.guard.await_rounds(5)
    assert gate.declared(arena.node, name) == []
    arena.withstand(suspect)
    assert gate.declared(arena.node, name) == []
    suspect.sh("kill -9 -1")
    until(lambda: not (made / "cgroup.procs").read_text(encoding="ascii"), 20, "the end of what was in it")
    remove(made, time.monotonic() + 20.0)  # which is busy until it is gone altogether
