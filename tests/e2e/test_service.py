"""The daemon as a service of systemd: ready, status line, watchdog, journal, reload."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from gpuguard.report.kinds import KINDS
from tests.e2e.conftest import MakeScope
from tests.e2e.service import Service
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober

TRIES = 10


@pytest.fixture
def service(node: Node) -> Iterator[Service]:
    """Return the service in `node`, not yet started; it is stopped and removed after the test."""
    node.path("/etc/gpuguard").mkdir(exist_ok=True)
    made = Service(node, guard={"declare": False}, log={"format": "auto"})
    with made:
        made.install()
        yield made


def test_service_becomes_ready_and_tells_its_status(service: Service, gpu_scope: MakeScope) -> None:
    """`systemctl start` returns when the daemon is ready; the unit's status line tells the containers' states."""
    scope = gpu_scope()
    service.start()
    assert service.show("ActiveState") == "active"
    until(lambda: service.show("StatusText") == "GPU containers: 1 at-risk", 20, "the status line")
    service.await_state(scope.name, "at-risk")
    service.systemctl("stop")
    assert (service.show("Result"), service.show("ExecMainStatus")) == ("success", "0")


def test_journal_has_the_fields(service: Service, gpu_scope: MakeScope) -> None:
    """`journalctl -t gpuguard -o verbose` shows loss and repair with MESSAGE_ID and the fields that tools filter by.

    Where systemd tells of its reload too late the cause is not known: that is tried again.
    """
    service.start()
    for _ in range(TRIES):
        scope = gpu_scope()
        service.await_state(scope.name, "at-risk")
        service.node.run(["systemctl", "daemon-reload"])
        service.await_state(scope.name, "protected")
        # Which is told when it is known who asked for it.
        for kind in (KINDS.lost, KINDS.repaired):
            until(partial(service.entries, kind, scope), 20, "the journal's entry")
        (lost,) = service.entries(KINDS.lost, scope)
        (repaired,) = service.entries(KINDS.repaired, scope)
        if lost["GPUGUARD_CAUSE"] != "unknown":
            break
    container = scope.name[len("docker-") : -len(".scope")]
    common = {
        "GPUGUARD_SCOPE": scope.name,
        "GPUGUARD_CONTAINER": container,
        "GPUGUARD_DEVICES": GPU0.path,
        "GPUGUARD_CAUSE": "reload",
        "GPUGUARD_WRITER": "systemd",
        "SYSLOG_IDENTIFIER": "gpuguard",
        "_SYSTEMD_UNIT": "gpuguard.service",
        "PRIORITY": "4",
    }
    assert common.items() <= lost.items()
    assert common.items() <= repaired.items()
    assert 0 < int(repaired["GPUGUARD_OUTAGE_USEC"]) < 60_000_000
    assert lost["MESSAGE"].startswith(f"docker {container[:12]}: GPU access lost: {GPU0.path} taken away by systemd")
    verbose = service.journal("--output=verbose")
    for field in (f"MESSAGE_ID={KINDS.repaired.message_id}", f"GPUGUARD_SCOPE={scope.name}", "GPUGUARD_STATE="):
        assert field in verbose


def test_reload_reads_the_configuration(service: Service, gpu_scope: MakeScope) -> None:
    """`systemctl reload` puts a new configuration in force; the service stays active with the same process."""
    scope = gpu_scope()
    service.start()
    service.await_state(scope.name, "at-risk")
    pid = service.show("MainPID")
    service.configure(log={"format": "auto"})
    service.systemctl("reload")
    service.await_state(scope.name, "protected")
    until(lambda: service.show("ActiveState") == "active", 20, "the end of the reload")
    assert service.show("MainPID") == pid


def test_watchdog_replaces_a_daemon_that_hangs(service: Service, gpu_scope: MakeScope, prober: Prober) -> None:
    """A daemon that makes no progress is killed and started anew by systemd, and the new one takes over."""
    service.install("WatchdogSec=25s\nRestartSec=100ms")
    scope = gpu_scope()
    service.start()
    service.await_state(scope.name, "at-risk")
    service.node.run(["kill", "-STOP", service.show("MainPID")])
    service.node.run(["systemctl", "daemon-reload"])
    # On cgroup v1 the sentinel goes on.
    left = prober.denied(scope.cgroup, [GPU0], within=5.0 if service.node.mode == "v1" else 0.0)
    if service.show("NRestarts") == "0":  # or this machine is too busy to tell whose work it was
        assert left == ([] if service.node.mode == "v1" else [GPU0.path])
    until(lambda: service.show("NRestarts") != "0", 60, "the watchdog")
    until(lambda: prober.open(scope.cgroup, GPU0).allowed, 60, "the repair by the next daemon")


def test_daemon_that_is_well_feeds_the_watchdog(service: Service) -> None:
    """A daemon that is well tells the watchdog so again and again, and is left alone."""
    service.install("WatchdogSec=20s")
    service.start()
    for _ in range(3):
        fed = service.show("WatchdogTimestampMonotonic")
        until(lambda before=fed: service.show("WatchdogTimestampMonotonic") != before, 60, "food")  # type: ignore[misc]
    assert (service.show("NRestarts"), service.show("ActiveState")) == ("0", "active")
