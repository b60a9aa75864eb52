"""The main job on every distribution: a container that loses its GPU to systemd has it again, and then keeps it."""

from __future__ import annotations

import json

import pytest

from gpuguard.report.kinds import KINDS
from tests.e2e import hooks
from tests.lab.containers import Container, Engine
from tests.lab.poll import until
from tests.matrix.stage import Stage

# The first test of a distribution may have to build it.
pytestmark = [pytest.mark.matrix, pytest.mark.node, pytest.mark.timeout(600)]

DEVICES = hooks.DEVICES
ALL = [device.path for device in DEVICES]
WITHIN = 20.0  # seconds; how soon it is, is for the benches

SYSTEMD = {"bullseye": "247", "bookworm": "252", "trixie": "257"}
PYTHON = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
# runc 1.1.3 to 1.1.6 tell systemd only of devices that have a link in /dev/char.
UNTOLD = {"bookworm"}
# systemd 256 and 257 rewrite device rules some time after a reload.
LATE = {"trixie"}


def hooked(engine: Engine) -> Container:
    """Start a container that gets its devices from the hook: no systemd is ever told of them."""
    return engine.run("trainer", args=hooks.options(engine))


def test_reload_takes_what_a_hook_gave(stage: Stage, engine: Engine) -> None:
    """Without a guard: what the hook gave is denied after a reload of systemd."""
    container = hooked(engine)
    assert stage.prober.denied(container.cgroup, DEVICES) == []
    stage.rewrite(container)
    assert stage.prober.denied(container.cgroup, DEVICES) == ALL
    assert container.exec(["true"]).returncode == 0


def test_when_a_reload_takes_it(stage: Stage, engine: Engine) -> None:
    """With systemd 257 the next start of a unit in the slice takes it; with older ones the reload itself."""
    container = hooked(engine)
    stage.reload()
    assert stage.prober.denied(container.cgroup, DEVICES) == ([] if stage.suite in LATE else ALL)
    stage.start_beside(container)
    assert stage.prober.denied(container.cgroup, DEVICES) == ALL


def test_reload_takes_devices_that_runc_does_not_tell_of(stage: Stage, engine: Engine) -> None:
    """Without a guard: what `--device` gave is denied after a reload, or not, as this runc tells systemd of it."""
    container = engine.run("trainer", DEVICES)
    assert stage.prober.denied(container.cgroup, DEVICES) == []
    stage.rewrite(container)
    assert stage.prober.denied(container.cgroup, DEVICES) == (ALL if stage.suite in UNTOLD else [])


def test_lost_devices_come_back_and_stay(stage: Stage, engine: Engine) -> None:
    """They are given back at once and declared; the next reload finds nothing to take; commands and journal say so."""
    with stage.gpuguard(guard={"declare": False}) as guard:
        container = hooked(engine)
        guard.start().await_state(container.scope, "at-risk")

        stage.rewrite(container)

        assert stage.prober.denied(container.cgroup, DEVICES, WITHIN) == [], guard.output()
        guard.await_state(container.scope, "protected")
        until(lambda: guard.told(KINDS.repaired, container.scope), 20, "the loss to be told")
        (lost,) = guard.told(KINDS.lost, container.scope)
        (repaired,) = guard.told(KINDS.repaired, container.scope)
        cause = lost["GPUGUARD_CAUSE"]
        assert repaired["GPUGUARD_CAUSE"] == cause
        # Where systemd tells of it too late, and nobody was seen waiting for it, it is not known.
        assert cause == "reload" or stage.suite in LATE or (cause == "unknown" and "GPUGUARD_REQUESTER" not in lost)
        assert guard.total("gpuguard_drift_total", kind="lost") == 1

        deeds = guard.deeds()
        for _ in range(3):
            stage.rewrite(container)
            assert stage.prober.denied(container.cgroup, DEVICES) == []
        guard.await_reloads(4)
        guard.await_rounds()
        assert guard.deeds() == deeds
        assert guard.total("gpuguard_containers", state="protected") == 1

        found = guard.status()[container.scope]
        assert (found["state"], found["runtime"], found["id"]) == ("protected", engine.program, container.id)
        assert {device["node"] for device in found["devices"] if device["effective"] and device["declared"]} >= set(ALL)
        check = guard.run("check")
        assert (check.returncode, check.stdout[:13]) == (0, "GPUGUARD OK -"), check.stdout


def test_nothing_is_lost_by_default(stage: Stage, engine: Engine) -> None:
    """What is declared beforehand is never taken by a reload, a re-execution or a change of a property."""
    with stage.gpuguard() as guard:
        guard.start()
        container = hooked(engine)
        guard.await_state(container.scope, "protected")
        for trigger in (["daemon-reload"], ["daemon-reexec"], ["set-property", container.scope, "CPUWeight=200"]):
            stage.node.run(["systemctl", *trigger])
            stage.start_beside(container)
            assert stage.prober.denied(container.cgroup, DEVICES) == [], trigger
        guard.await_rounds()
        assert guard.total("gpuguard_drift_total", kind="lost") == 0
        assert guard.total("gpuguard_repairs_total", method="declare", result="ok") == 1
        assert guard.told(KINDS.lost, container.scope) == []


def test_an_update_takes_nothing_for_long(stage: Stage, engine: Engine) -> None:
    """The engine's `update` ends with the devices in force and declared, also where runc forgets what was declared.

    runc 1.0.0-rc93 sends systemd its own list of devices again at each update; later ones send none.
    """
    if stage.suite == "bullseye" and engine.program == "podman" and stage.node.mode == "v1":
        pytest.skip("Podman 3 has no `update`")
    with stage.gpuguard() as guard:
        guard.start()
        container = hooked(engine)
        guard.await_state(container.scope, "protected")
        declared = stage.device_allow(container)
        container.update_cpu_shares(512)
        stage.node.carried_out()
        assert stage.prober.denied(container.cgroup, DEVICES, WITHIN) == [], guard.output()
        guard.await_rounds()
        guard.await_state(container.scope, "protected")
        until(lambda: stage.device_allow(container) == declared, 20, "all to be declared as before")


def test_the_nodes_own_versions_are_told(stage: Stage) -> None:
    """The service runs with the node's Python and knows the node's systemd and cgroup mode."""
    with stage.gpuguard() as guard:
        guard.start()
        (labels,) = (dict(labels) for labels in guard.samples("gpuguard_build_info"))
        assert labels["systemd"] == SYSTEMD[stage.suite]
        assert labels["python"].startswith(f"{PYTHON[stage.suite]}.")
        assert labels["cgroup"] == stage.node.mode
        assert "has changed" not in stage.install_said  # systemd 257 asks for a reload after an enable
        node = json.loads(guard.run("status", "--json").stdout)["node"]
        assert (node["daemon"], node["cgroup"], str(node["systemd"])) == ("running", stage.node.mode, labels["systemd"])
