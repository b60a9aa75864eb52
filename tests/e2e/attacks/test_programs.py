"""cgroup v2: a container that may load BPF programs changes those of its own control group, as NVIDIA's hook does.

What it opens by that it opens by its own doing, as long as systemd does not write: it is neither learnt nor declared.
"""

from __future__ import annotations

import shlex

import pytest

from tests.e2e import gate
from tests.e2e.attacks.arena import ADMIN, TOOLS, Arena, Suspect
from tests.lab.devices import GPU0, GPU1
from tests.lab.node import ROOT
from tests.lab.poll import until

pytestmark = [pytest.mark.cgroup("v2"), pytest.mark.invariant(1)]

RIGHTS = (*ADMIN, *TOOLS, f"--volume={ROOT}:{ROOT}:ro")
_MOUNT = "PATH=/bin; mkdir -p /cg; mount -t cgroup2 none /cg"

_ALLOW = f"""
import sys; sys.path.insert(0, {str(ROOT)!r}); sys.dont_write_bytecode = True
from pathlib import Path
from tests.lab import hook
from tests.lab.devices import GPU1
hook.allow(Path("/cg"), GPU1)
"""
_DETACH = f"""
import sys; sys.path.insert(0, {str(ROOT)!r}); sys.dont_write_bytecode = True
from pathlib import Path
from tests.lab import hook
for number in hook.attached(Path("/cg")):
    hook._detach(Path("/cg"), number)
"""


def has_gained(suspect: Suspect) -> bool:
    """Whether the attack itself has worked."""
    return gate.has(suspect.cgroup, GPU1)


def assert_not_learnt(arena: Arena, *suspects: Suspect) -> None:
    """Assert that nobody thinks that they were given it, and that systemd has not been told."""
    for number, suspect in enumerate(suspects):
        assert arena.learnt(suspect) <= {device.rule for device in suspect.given}, f"by attacker {number}"
        assert not any("195:1 " in entry for entry in gate.declared(arena.node, suspect.scope))


@pytest.mark.parametrize("program", [_ALLOW, _DETACH], ids=["one more device", "no filter at all"])
def test_what_it_opens_for_itself(arena: Arena, program: str) -> None:
    """Once settled, and as its first act; a reload takes it, since systemd's own program comes back."""
    first_act = f"{_MOUNT}; /usr/bin/python3 -c {shlex.quote(program)} || exit 1"
    suspects = [arena.enter(RIGHTS), arena.enter(RIGHTS, ()), arena.enter(RIGHTS, init=first_act, wait=False)]
    for suspect in suspects[:2]:
        suspect.sh(_MOUNT)
        suspect.python(program)
    for suspect in suspects:
        until(lambda s=suspect: has_gained(s), 20, "the attack")  # type: ignore[misc]
    arena.guard.await_rounds(8)
    assert_not_learnt(arena, *suspects)
    arena.restart_cold()
    arena.guard.await_rounds(8)
    assert_not_learnt(arena, *suspects)
    arena.node.run(["systemctl", "daemon-reload"])
    arena.guard.repair()
    arena.guard.await_rounds(3)
    assert_not_learnt(arena, *suspects)
    arena.assert_denied(*(suspect.cgroup for suspect in suspects), devices=(GPU1,))
    arena.restart_cold()
    arena.assert_honest_heals()
    assert_not_learnt(arena, *suspects)
    arena.assert_denied(*(suspect.cgroup for suspect in suspects), devices=(GPU1,))
    assert GPU0.rule not in arena.learnt(suspects[1])
