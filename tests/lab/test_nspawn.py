"""systemd-nspawn in the node: a machine in each kind of unit."""

from __future__ import annotations

import pytest

from tests.lab import hook
from tests.lab.devices import GPU0, GPU1
from tests.lab.errors import LabError
from tests.lab.nspawn import WAYS, Nspawn
from tests.lab.prober import Prober

UNITS = {
    "scope": r"machine-train\x2d0.scope",
    "unit": "lab-train-0.service",
    "template": "systemd-nspawn@train-0.service",
}


@pytest.mark.parametrize("how", WAYS)
def test_machine_is_in_its_unit(nspawn: Nspawn, prober: Prober, how: str) -> None:
    """A machine is known to machined by its unit, and its first process is there or, on v2, below."""
    given = how != "scope"
    machine = nspawn.run("train-0", [GPU0] if given else [], how)
    assert machine.scope == UNITS[how]
    assert machine.inside == machine.cgroup / ("payload" if nspawn.node.mode == "v2" else "")
    assert prober.open(machine.inside, GPU0).allowed is given
    assert prober.open(machine.inside, GPU1).denied


def test_device_of_a_hook_is_lost_at_a_reload(nspawn: Nspawn, prober: Prober) -> None:
    """What systemd was not told of is gone after a reload, as with other containers."""
    machine = nspawn.run("train-0")
    hook.allow(machine.cgroup, GPU0)
    assert prober.open(machine.inside, GPU0).allowed
    nspawn.node.run(["systemctl", "daemon-reload"])
    assert prober.open(machine.inside, GPU0).denied


def test_names_are_free_again(nspawn: Nspawn) -> None:
    """Machines end with `clear`, and their names can be used again; what cannot be had is an error."""
    nspawn.run("one")
    nspawn.clear()
    nspawn.run("one")
    with pytest.raises(LabError, match="lets nobody give devices"):
        nspawn.run("two", [GPU0])
