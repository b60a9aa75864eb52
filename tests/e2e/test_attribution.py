"""Who took a device away, why and for whom: in `gpuguard explain --json`, in the journal and in the metrics.

A node has a pid namespace of its own, in which the kernel tells nobody of programs that start: who has ended before
systemd writes, or is looked for too late on a busy machine, is not found there. Then nobody is told of, and never
somebody else: that is tried again. On cgroup v2 it is more often so: the tracer tells of all nodes.
"""

from __future__ import annotations

import json
import shlex
import shutil
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from gpuguard.report.kinds import KINDS
from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import Gpuguard
from tests.e2e.service import Service
from tests.lab import hook
from tests.lab.containers import Engine
from tests.lab.devices import GPU0, GPU1
from tests.lab.node import Node
from tests.lab.package import Package
from tests.lab.poll import until
from tests.lab.scope import Scope

# Nothing is declared before a loss: each of these takes something away.
UNPROTECTED = {"declare": False}
TRIES = {"v1": 20, "v2": 20}
JOB = "nightly"
SCRIPT = f"/root/{JOB}.sh"
CALLERS = f"{JOB}.sh ← {JOB}.service"
UNIT = "attributed.service"
MANAGER = "org.freedesktop.systemd1 /org/freedesktop/systemd1 org.freedesktop.systemd1.Manager"
DENY = "/sys/fs/cgroup/devices/system.slice/{scope}/devices.deny"
ALLOW = "/sys/fs/cgroup/devices/system.slice/{scope}/devices.allow"


@dataclass(frozen=True)
class Trigger:
    """What a script does to a scope, and what is to be told of it.

    `asker` is the first of the chain, "" for the script itself.
    """

    line: str
    cause: str
    asker: str = ""
    writer: str = "systemd"
    properties: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("v1", "v2")


TRIGGERS = {
    "reload by systemctl": Trigger("systemctl daemon-reload", "reload", "systemctl daemon-reload"),
    "reload after enabling": Trigger(f"systemctl enable {UNIT}", "reload", "systemctl enable"),
    "reload over the bus": Trigger(f"busctl call {MANAGER} Reload", "reload", "busctl Reload"),
    # systemctl ends when systemd closes its connection, before it executes itself: the signal comes before that.
    "reexec": Trigger("systemctl daemon-reexec", "reexec", "systemctl daemon-reexec"),
    "property by systemctl": Trigger(
        "chrt --idle 0 systemctl set-property --runtime {scope} CPUWeight=200",
        "property",
        "systemctl set-property {short} CPUWeight",
        properties=("CPUWeight",),
    ),
    "property over the bus": Trigger(
        f"busctl call {MANAGER} SetUnitProperties 'sba(sv)' {{scope}} true 1 CPUWeight t 200",
        "property",
        "busctl SetUnitProperties {short}",
        properties=("CPUWeight",),
    ),
    "by hand": Trigger(f"sh -c 'echo a > {DENY}; sleep 0.5'", "manual", writer="sh", modes=("v1",)),
}


class Job:
    """A service that runs a script, as a timer's does."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def run(self, *lines: str) -> None:
        """Run these lines of a shell and wait for their end."""
        self._start(lines, "--wait")

    @contextmanager
    def writing(self, text: str, path: str) -> Iterator[None]:
        """Have a shell of the script's write to a file, which is there for the time of the block: it is looked up."""
        self._start([f"sh -c 'echo {text} > {path}; sleep infinity; :'"])
        try:
            yield
        finally:
            self._node.run(["systemctl", "stop", f"{JOB}.service"])

    def _start(self, lines: Sequence[str], *options: str) -> None:
        self._node.path(SCRIPT).write_text("\n".join(["set -e", *lines, ":"]) + "\n", encoding="utf-8")
        self._node.run(["systemd-run", "--collect", *options, f"--unit={JOB}", "/bin/sh", SCRIPT])


@pytest.fixture
def guard(launch: Launch) -> Gpuguard:
    """Return gpuguard, started."""
    return launch(guard=UNPROTECTED).start()


@pytest.fixture
def job(node: Node) -> Job:
    """Return the way to run a script in a service."""
    return Job(node)


@pytest.fixture
def unit(node: Node) -> Iterator[None]:
    """Give the node a unit that can be enabled."""
    path = node.path(f"/etc/systemd/system/{UNIT}")
    path.write_text("[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n", encoding="utf-8")
    yield
    node.run(["systemctl", "disable", UNIT])
    path.unlink()


@pytest.fixture
def package(node: Node) -> Iterator[Package]:
    """Yield a package whose script reloads systemd."""
    if shutil.which("apt-get") is None:
        pytest.skip("needs dpkg and apt")
    made = Package(node, "gpu-exporter")
    yield made
    made.remove()


@pytest.fixture
def service(node: Node) -> Iterator[Service]:
    """Yield the service in `node`, not yet started, with the journal for its log."""
    node.path("/etc/gpuguard").mkdir(exist_ok=True)
    made = Service(node, guard=UNPROTECTED, log={"format": "auto"})
    with made:
        made.install()
        yield made


def told(guard: Gpuguard, kind: str, scope: str) -> dict[str, Any]:
    """Return the first event of a kind about a scope, once it is there."""
    until(lambda: guard.events(kind, scope=scope), 20, f"an event {kind}")
    return guard.events(kind, scope=scope)[0]


def last_writer(guard: Gpuguard, scope: str) -> dict[str, Any]:
    """Return what `gpuguard explain --json` says of the last writer, once it is known why that wrote."""
    found: list[dict[str, Any]] = []

    def known() -> bool:
        done = guard.run("explain", scope, "--json")
        assert done.returncode == 0, done.stderr
        found[:] = filter(None, [json.loads(done.stdout)["last_writer"]])
        return bool(found)

    until(known, 20, "the last writer")
    return found[0]


def tries(node: Node, trigger: Trigger) -> range:
    """Return how often a trigger is tried. Skips the test where it is not possible."""
    if node.mode not in trigger.modes:
        pytest.skip(f"there is no such file on cgroup {node.mode}")
    return range(TRIES[node.mode])


def pull(trigger: Trigger, job: Job, scope: Scope) -> tuple[str, ...]:
    """Do it; return the chain of those who asked for it, and what is left of it when the first was about to end."""
    job.run(trigger.line.format(scope=scope.name))
    identity = scope.name[len("docker-") : -len(".scope")]
    asker = trigger.asker.format(short=f"docker-{identity[:12]}….scope")
    return (f"{asker} ← {CALLERS}", f"{asker.split()[0]} ← {CALLERS}") if asker else (CALLERS,)


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("name", TRIGGERS)
def test_told(node: Node, gpu_scope: MakeScope, guard: Gpuguard, job: Job, name: str) -> None:
    """The log and the metrics tell the same of a loss: the writer, the cause and the chain of those who asked."""
    trigger = TRIGGERS[name]
    for _ in tries(node, trigger):
        scope = gpu_scope()
        guard.await_state(scope.name, "at-risk")
        chains = pull(trigger, job, scope)
        event = told(guard, "repaired", scope.name)
        requester, cause, writer = event.get("requester"), event["cause"], event.get("writer", "unknown")
        assert requester in {*chains, None}
        assert cause == trigger.cause or (cause == "unknown" and requester is None)
        if cause != "unknown":
            assert (program(writer), event["writer_pid"] == 1) == (trigger.writer, trigger.writer == "systemd")
        outermost = requester.split(" ← ")[-1] if requester else "unknown"
        assert guard.total("gpuguard_drift_total", kind="lost", cause=cause, writer=writer) >= 1
        assert guard.total("gpuguard_drift_requests_total", cause=cause, requester=outermost) >= 1
        properties = tuple(event.get("property", ()))
        assert properties in {trigger.properties, ()}
        if (requester, properties) == (chains[0], trigger.properties):
            break
    else:
        pytest.fail("not once told whole")


@pytest.mark.usefixtures("unit")
@pytest.mark.parametrize("name", TRIGGERS)
def test_explained(node: Node, gpu_scope: MakeScope, launch: Launch, job: Job, name: str) -> None:
    """So does `gpuguard explain`; in observe mode, so that nobody has written after that."""
    trigger, guard = TRIGGERS[name], launch(guard={**UNPROTECTED, "mode": "observe"}).start()
    for _ in tries(node, trigger):
        scope = gpu_scope()
        guard.await_state(scope.name, "at-risk")
        chains = pull(trigger, job, scope)
        guard.await_state(scope.name, "lost")
        guard.await_rounds(3)  # what the bus tells may come after the write
        found = last_writer(guard, scope.name)
        assert found["request"] in {*chains, ""}
        assert found["cause"] == trigger.cause or (found["cause"] == "unknown" and not found["request"])
        if found["cause"] != "unknown":
            assert program(found["writer"]["name"]) == trigger.writer
        properties = tuple(found["properties"])
        assert properties in {trigger.properties, ()}
        if (found["request"], properties) == (chains[0], trigger.properties):
            break
    else:
        pytest.fail("not once told whole")


def test_explained_after_a_reload_of_gpuguard_s_own(gpu_scope: MakeScope, launch: Launch) -> None:
    """Another configuration changes nothing about who has written last."""
    scope, guard = gpu_scope(), launch(guard={**UNPROTECTED, "mode": "observe"}).start()
    guard.await_state(scope.name, "at-risk")
    guard.node.run(["systemctl", "daemon-reload"])
    guard.await_state(scope.name, "lost")
    guard.await_rounds(3)
    before = last_writer(guard, scope.name)
    guard.configure(guard={**UNPROTECTED, "mode": "observe", "settle": "900ms"})
    guard.daemon.signal(signal.SIGHUP)
    until(lambda: guard.events("config_reloaded"), 20, "the new configuration")
    until(lambda: last_writer(guard, scope.name) == before, 20, "the last writer of before")


@pytest.mark.parametrize("how", ["by_dpkg", "by_apt"])
def test_a_package(gpu_scope: MakeScope, guard: Gpuguard, job: Job, package: Package, how: str) -> None:
    """A reload by a package's script is put down to that package, and to what installed it."""
    node = guard.node
    installer = ["apt-get"] if how == "by_apt" else []
    chain = " ← ".join(["systemctl daemon-reload", "dpkg postinst of gpu-exporter", *installer, CALLERS])
    for _ in range(TRIES[node.mode]):
        scope = gpu_scope()
        guard.await_state(scope.name, "at-risk")
        job.run(shlex.join(getattr(package, how)))
        event = told(guard, "repaired", scope.name)
        assert (event["cause"], event.get("requester")) in {("reload", chain), ("reload", None), ("unknown", None)}
        if "requester" in event:
            break
        node.run(["dpkg", "--purge", package.name])
    else:
        pytest.fail("not once told whole")


def test_a_runtime(engine: Engine, guard: Gpuguard) -> None:
    """A container's update is the runtime's, by systemd's hand."""
    for number in range(TRIES[engine.node.mode]):
        container = engine.run(f"trainer{number}")
        hook.allow(container.cgroup, GPU0)
        guard.await_state(container.scope, "at-risk")
        container.update_cpu_shares(512)
        event = told(guard, "repaired", container.scope)
        if event["cause"] == "runtime":
            break
        assert event["cause"] in {"property", "unknown"}
        assert event.get("requester", "runc").split(" ← ")[0] == "runc"  # it has just ended
    assert (event["cause"], event["writer"]) == ("runtime", "systemd")
    assert event["requester"].split(" ← ")[0] in {"runc update", "runc"}


def test_in_the_journal(node: Node, service: Service, gpu_scope: MakeScope, job: Job) -> None:
    """The journal has it in fields of its own."""
    service.start()
    for _ in range(TRIES[node.mode]):
        scope = gpu_scope()
        service.await_state(scope.name, "at-risk")
        job.run("systemctl daemon-reload")
        until(lambda scope=scope: service.entries(KINDS.repaired, scope), 20, "the journal's entry")  # type: ignore[misc]
        (entry,) = service.entries(KINDS.repaired, scope)
        if "GPUGUARD_REQUESTER" in entry:
            break
        assert entry["GPUGUARD_CAUSE"] in {"reload", "unknown"}
    assert (entry["GPUGUARD_CAUSE"], entry["GPUGUARD_WRITER"]) == ("reload", "systemd")
    assert entry["GPUGUARD_WRITER_PID"] == "1"
    assert entry["GPUGUARD_REQUESTER"] == f"systemctl daemon-reload ← {CALLERS}"
    (lost,) = service.entries(KINDS.lost, scope)
    assert lost["GPUGUARD_REQUESTER"] == entry["GPUGUARD_REQUESTER"]


@pytest.mark.cgroup("v1")
def test_a_single_rule_taken_by_hand(gpu_scope: MakeScope, launch: Launch, job: Job) -> None:
    """Who takes one device away means it: it is told who, and not given back; the others are guarded on."""
    scope = gpu_scope()
    hook.allow(scope.cgroup, GPU1)
    guard = launch(guard=UNPROTECTED).start()  # not before: what comes late is not given
    guard.await_state(scope.name, "at-risk")
    guard.await_watched(scope.cgroup)
    with job.writing(f"{GPU1.rule} rwm", DENY.format(scope=scope.name)):
        event = told(guard, "revoked", scope.name)
    assert (event["cause"], program(event["writer"]), event["requester"]) == ("manual", "sh", CALLERS)
    job.run("systemctl daemon-reload")
    told(guard, "repaired", scope.name)
    guard.await_rounds(3)
    assert gate.has(scope.cgroup, GPU0)
    assert not gate.has(scope.cgroup, GPU1)


@pytest.mark.cgroup("v1")
def test_a_single_rule_given_by_hand(gpu_scope: MakeScope, guard: Gpuguard, job: Job) -> None:
    """Who gives a container one device more means it: it is told who, and guarded from then on."""
    scope = gpu_scope()
    guard.await_state(scope.name, "at-risk")
    guard.await_watched(scope.cgroup)
    with job.writing(f"{GPU1.rule} rw", ALLOW.format(scope=scope.name)):
        event = told(guard, "granted", scope.name)
    assert (event["cause"], program(event["writer"]), event["requester"]) == ("manual", "sh", CALLERS)
    job.run("systemctl daemon-reload")
    until(lambda: gate.has(scope.cgroup, GPU1) and gate.has(scope.cgroup, GPU0), 20, "both devices")


def program(name: str) -> str:
    """Return a program's name; a shell has many."""
    return "sh" if name in {"sh", "dash", "bash"} else name
