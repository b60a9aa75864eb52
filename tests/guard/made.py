"""Made-up scopes."""

from __future__ import annotations

from typing import Optional

from gpuguard.guard.mend import Target
from gpuguard.guard.observe import SystemdView
from gpuguard.guard.scope import Scope
from gpuguard.model.backoff import Backoff
from gpuguard.model.device_list import DeviceList
from gpuguard.model.entitlement import Entitlement
from gpuguard.model.observation import Declared
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.scope_name import ContainerScope
from gpuguard.model.state import State
from gpuguard.model.verdict import Verdict
from tests.model.looks import rules

ID = "ab" * 32
UNIT = f"docker-{ID}.scope"
GROUP = f"/system.slice/{UNIT}"
GPU0, GPU1 = "c 195:0 rw", "c 195:1 rw"


def entitled(*lines: str, settled: bool = True, struck: bool = False, inode: int = 7) -> Entitlement:
    """Return the entitlement of the scope that scope() makes."""
    return Entitlement(UNIT, GROUP, inode, "", rules(*lines), frozenset(), settled, struck, 1.0, 1.0)


def scope(
    state: Optional[State] = State.PROTECTED,
    *,
    known: Optional[Entitlement] = None,
    effective: Optional[RuleSet] = None,
    declared: Optional[Declared] = None,
    verdict: Optional[Verdict] = None,
) -> Scope:
    """Return a Docker container's scope in a state, with a view of systemd that is 0 s old at second 100."""
    return Scope(
        Target(UNIT, GROUP, 7, GROUP),
        ContainerScope("docker", ID),
        Backoff(5, 60.0, 30.0),
        entitled=known,
        seen=None if effective is None else DeviceList(7, effective),
        view=SystemdView(declared=declared),
        viewed_at=100.0,
        verdict=verdict or (None if state is None else Verdict(state)),
    )
