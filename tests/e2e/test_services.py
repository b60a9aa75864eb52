"""gpuguard and services, which unlike scopes can run again under the same name and in the same control group."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e import gate
from tests.e2e.conftest import Launch
from tests.lab import hook
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.poll import until

UNIT = "job.service"
SETTINGS = ("DevicePolicy=strict", "DeviceAllow=/dev/null rwm", "DeviceAllow=char-pts rwm")
GUARDED = {"scopes": {"units": [UNIT]}}


def invocation(node: Node) -> str:
    """Return the id of the service's run."""
    return node.run(["systemctl", "show", "--property=InvocationID", "--value", UNIT]).stdout.strip()


@pytest.fixture
def stopped(node: Node) -> Iterator[None]:
    """Stop the service after the test, with all that it left running."""
    yield
    node.run(["systemctl", "stop", UNIT], check=False)
    node.run(["systemctl", "kill", "--signal=KILL", UNIT], check=False)


@pytest.mark.usefixtures("stopped")
@pytest.mark.invariant(5)
def test_a_transient_service_is_given_nothing_that_outlives_its_run(node: Node, launch: Launch) -> None:
    """A hook's rule of a transient service is not declared: after `systemctl restart` the new run has no GPU."""
    properties = [f"--property={setting}" for setting in SETTINGS]
    node.run(["systemd-run", f"--unit={UNIT}", *properties, "sleep", "infinity"])
    hook.allow(node.cgroup(UNIT), GPU0)
    guard = launch(**GUARDED).start()
    guard.await_rounds(3)
    until(lambda: guard.events("at_risk", scope=UNIT), 20, "the warning")
    assert "would outlive this run" in guard.events("at_risk", scope=UNIT)[0]["reason"]

    node.run(["systemctl", "restart", UNIT])
    guard.await_rounds(3)
    assert not gate.has(node.cgroup(UNIT), GPU0)


@pytest.mark.usefixtures("stopped")
@pytest.mark.invariant(5)
def test_a_service_that_runs_again_in_the_same_group_inherits_nothing(node: Node, launch: Launch) -> None:
    """What a reload takes from a new run, that it had only from the run before, is neither given back nor learnt."""
    text = "\n".join(["[Service]", "KillMode=process", *SETTINGS, "ExecStart=sh -c 'sleep 1000 & exec sleep 1000'"])
    node.path(f"/run/systemd/system/{UNIT}").write_text(text + "\n")
    node.run(["systemctl", "daemon-reload"])
    node.run(["systemctl", "start", UNIT])
    cgroup, first = node.cgroup(UNIT), invocation(node)
    inode = cgroup.stat().st_ino
    hook.allow(cgroup, GPU0)
    guard = launch(**GUARDED, guard={"poll_interval": "60s"}).start()
    until(lambda: guard.events("found", scope=UNIT), 20, "the service to be known")
    guard.await_rest()

    node.run(["systemctl", "restart", UNIT])
    assert invocation(node) != first
    assert cgroup.stat().st_ino == inode
    node.run(["systemctl", "daemon-reload"])
    guard.await_reloads(1)
    # On cgroup v2 what the hook has attached for the first run stays, and lets the device through: it gives nothing.
    until(lambda: not guard.ledger(), 20, "the entitlement of the first run to be forgotten")
    assert guard.events("lost", scope=UNIT) == []
    assert guard.total("gpuguard_repairs_total") == 0
    assert not gate.has(cgroup, GPU0)
    assert guard.events("repaired") == []

    node.path(f"/run/systemd/system/{UNIT}").unlink()
    node.run(["systemctl", "daemon-reload"])
