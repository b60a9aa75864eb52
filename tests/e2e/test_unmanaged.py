"""Containers whose control group systemd does not manage: the cgroupfs driver's, and Podman's below a unit."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

from gpuguard.model.refusal import Refusal
from tests.e2e import gate
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.lab import bpf, hook
from tests.lab.containerd import Containerd
from tests.lab.containers import Container, Docker, Engine, Podman
from tests.lab.devices import CTL, GPU0, GPU1, Device
from tests.lab.node import Node
from tests.lab.payloads import Split
from tests.lab.poll import until
from tests.lab.prober import Prober

_ROOTFS = "/var/lib/lab-containerd-rootfs"


class Kubelet(Containerd):
    """Containers as the kubelet and containerd make them with the cgroupfs driver."""

    def __init__(self, node: Node) -> None:
        super().__init__(node)
        self.cgroups = "cgroupfs"

    def _launch(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> None:
        identity = self._ids[name] = secrets.token_hex(32)
        pod = "-".join(secrets.token_hex(length) for length in (4, 2, 2, 2, 6))
        notes = [f"--annotation={key}={value}" for key, value in self.annotations(name).items()]
        group = f"--cgroup=/kubepods/burstable/pod{pod}/{identity}"
        wanted = [f"--device={device.path}" for device in devices]
        options = ["--detach", "--rootfs", group, *self.run_options, *notes, *wanted, *args]
        self.command("run", *options, _ROOTFS, identity, "/bin/sleep", "1000000")


class InScope(Split):
    """Podman's `--cgroups=split` from a scope, as from a login session or `systemd-run --scope`."""

    def scope(self, container: Container) -> str:
        """Return a container's unit."""
        return f"lab-{container.name}.scope"

    def _launch(self, name: str, devices: Sequence[Device], args: Sequence[str]) -> None:
        podman = [*self.client, *self._arguments(name, devices, ["--cgroups=split", *args])]
        self.node.run(["systemd-run", "--scope", "--collect", f"--unit=lab-{name}.scope", *podman])


_ENGINES: Mapping[str, Callable[[Node], Engine]] = {
    "docker": lambda node: Docker(node, cgroups="cgroupfs"),
    "podman": lambda node: Podman(node, cgroups="cgroupfs"),
    "kubelet": Kubelet,
}


@pytest.fixture(params=_ENGINES)
def loose(request: pytest.FixtureRequest, node: Node) -> Iterator[Engine]:
    """Return each engine in turn, with the cgroupfs driver; its containers are removed after the test."""
    found = _ENGINES[request.param](node)
    reason = found.why_not()
    if reason is not None:
        pytest.skip(reason)
    yield found
    found.clear()
    node.run(["systemctl", "stop", "dockerd.service"], check=False)


@pytest.fixture
def in_scope(node: Node) -> Iterator[InScope]:
    """Return Podman with containers in scopes of systemd-run's; they are removed after the test."""
    reason = InScope.why_not()
    if reason is not None:
        pytest.skip(reason)
    found = InScope(node)
    yield found
    found.clear()


def assert_calm(guard: Gpuguard) -> None:
    """Assert that nothing was lost, and nothing done."""
    assert guard.events("lost", "partial", "at_risk", "repair_failed") == []
    assert sum(guard.deeds().values()) == 0


def reload_all(guard: Gpuguard) -> None:
    """Have systemd write anew all that is its own to write, in both ways, and wait until that was looked at."""
    for number, verb in enumerate(("daemon-reload", "daemon-reexec"), start=1):
        guard.node.run(["systemctl", verb])
        guard.await_reloads(number)
    guard.await_rounds()


def set_policy(container: Container, policy: str) -> None:
    """Change what a container's unit may open."""
    container.node.run(["systemctl", "set-property", "--runtime", container.scope, f"DevicePolicy={policy}"])
    container.node.carried_out()


class TestCgroupfsDriver:
    """systemd knows no unit."""

    @pytest.mark.invariant(8)
    def test_protected_since_nobody_touches_it(self, loose: Engine, launch: Launch, prober: Prober) -> None:
        """It is found, named, and not at risk; nothing is declared, and no reload takes anything."""
        container = loose.run("trainer", [GPU0, CTL])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        reload_all(guard)
        assert prober.denied(container.cgroup, [GPU0, CTL]) == []
        found = guard.status()[container.scope]
        assert (found["name"], found["managed"], found["reason"]) == ("trainer", False, Refusal.UNMANAGED.value)
        assert [(one["device"], one["effective"], one["declared"]) for one in found["devices"]] == [
            (GPU0.rule, True, None),
            (CTL.rule, True, None),
        ]
        assert_calm(guard)

    @pytest.mark.cgroup("v1")
    def test_given_back_by_writing(self, loose: Engine, launch: Launch, prober: Prober) -> None:
        """What somebody empties is filled again with what was given, and nothing beside that."""
        container = loose.run("trainer", [GPU0, CTL])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        before = gate.rules(container.cgroup)
        (container.cgroup / "devices.deny").write_text("a", encoding="ascii")
        assert prober.denied(container.cgroup, [GPU0, CTL], within=20.0) == []
        assert prober.open(container.cgroup, GPU1).denied
        guard.await_state(container.scope, "protected", container=container.id)
        assert gate.rules(container.cgroup) <= before
        assert guard.total("gpuguard_repairs_total", method="declare") == 0

    @pytest.mark.cgroup("v2")
    def test_lost_to_a_program(self, loose: Engine, launch: Launch, prober: Prober) -> None:
        """There is nothing to write on cgroup v2, and nobody to have it written: that is told, and who denies it."""
        container = loose.run("trainer", [GPU0, CTL])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        with bpf.program(bpf.DENY_ALL) as loaded:
            bpf.attach(container.cgroup, loaded.fd)
            guard.await_state(container.scope, "lost", container=container.id)
            assert guard.status()[container.scope]["reason"].startswith("only its runtime can give it back: ")
            assert prober.open(container.cgroup, GPU0).denied
            bpf.detach(container.cgroup, loaded.fd)
        guard.await_state(container.scope, "protected", container=container.id)
        assert sum(guard.deeds().values()) == 0

    def test_doctor_says_why(self, loose: Engine, launch: Launch) -> None:
        """How many there are and what that means is told; there is nothing to be done about it."""
        container = loose.run("trainer", [GPU0])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        told = guard.run("doctor").stdout
        assert f"1 container: {Refusal.UNMANAGED.value}" in told
        assert "trainer" not in told

    def test_one_that_comes_later_and_goes(self, loose: Engine, launch: Launch) -> None:
        """It is found without a signal of systemd's, and forgotten when it ends."""
        guard = launch().start()
        container = loose.run("trainer", [GPU0])
        guard.await_state(container.scope, "protected", container=container.id)
        container.stop()
        until(lambda: not guard.samples("gpuguard_container_info"), 20, "the end of the container to be seen")
        until(lambda: guard.ledger() == {}, 20, "the container to be forgotten")
        assert guard.status() == {}

    def test_excluded(self, loose: Engine, launch: Launch) -> None:
        """The configuration can leave a part of the tree alone."""
        container = loose.run("trainer", [GPU0])
        guard = launch(scopes={"exclude": [f"{container.group.rpartition('/')[0]}/*"]}).start()
        guard.await_rounds(4)
        assert guard.status() == {}


class TestBelowAService:
    """Podman's --cgroups=split and quadlets: systemd knows the service, and the container is in a group below."""

    @pytest.mark.cgroup("v1")
    @pytest.mark.invariant(8)
    def test_nothing_reaches_it_on_v1(self, split: Split, launch: Launch, prober: Prober) -> None:
        """A service with groups below keeps its list, whatever systemd writes: the kernel refuses its deny-all."""
        container = split.run("trainer", [GPU0])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        reload_all(guard)
        set_policy(container, "strict")
        guard.await_rounds()
        assert prober.denied(container.cgroup, [GPU0]) == []
        found = guard.status()[container.scope]
        assert (found["state"], found["managed"], found["reason"]) == ("protected", False, Refusal.BELOW.value)
        assert_calm(guard)

    @pytest.mark.cgroup("v2")
    def test_its_services_filter_counts_on_v2(self, split: Split, launch: Launch, prober: Prober) -> None:
        """What the service's own settings deny is lost, and the advice is for the service."""
        container = split.run("trainer", [GPU0])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        set_policy(container, "closed")
        guard.await_state(container.scope, "lost", container=container.id)
        assert prober.open(container.cgroup, GPU0).denied
        assert guard.status()[container.scope]["reason"] == Refusal.RESTARTABLE.value
        assert "DeviceAllow=/dev/char/195:0" in guard.run("explain", container.id).stdout

    def test_excluded_by_its_service(self, split: Split, launch: Launch) -> None:
        """The operator names the service, and not a control group that has another name each time."""
        container = split.run("trainer", [GPU0])
        guard = launch(scopes={"exclude": [container.scope]}).start()
        guard.await_rounds(4)
        assert guard.status() == {}


class TestBelowAScope:
    """A scope cannot run again: what its container needs can be declared to it."""

    @pytest.mark.cgroup("v2")
    def test_is_declared_to_the_scope(self, in_scope: InScope, launch: Launch, prober: Prober) -> None:
        """What the scope's filter takes comes back by an entry of the scope's, and stays."""
        container = in_scope.run("trainer", [GPU0])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        set_policy(container, "closed")
        assert prober.denied(container.cgroup, [GPU0], within=20.0) == []
        guard.await_state(container.scope, "protected", container=container.id)
        in_scope.node.run(["systemctl", "daemon-reload"])
        guard.await_reloads(1)
        assert prober.denied(container.cgroup, [GPU0]) == []
        assert prober.open(container.cgroup, GPU1).denied
        assert any("195:0" in entry for entry in gate.declared(in_scope.node, container.scope))

    @pytest.mark.cgroup("v1")
    def test_is_left_alone_on_v1(self, in_scope: InScope, launch: Launch, prober: Prober) -> None:
        """Nothing is declared there, since nothing can be lost by it."""
        container = in_scope.run("trainer", [GPU0])
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        reload_all(guard)
        assert prober.denied(container.cgroup, [GPU0]) == []
        assert_calm(guard)


class TestLookAlikes:
    """What a user could make in what was handed to him."""

    @pytest.mark.cgroup("v2")
    @pytest.mark.invariant(1)
    def test_below_a_users_service(self, split: Split, launch: Launch) -> None:
        """A payload's name with a real container's id, in a service that was delegated to a user, is nobody's."""
        container = split.run("trainer", [GPU0])
        node, unit = split.node, "theirs.service"
        node.run(
            ["systemd-run", f"--unit={unit}", "--property=User=nobody", "--property=Delegate=yes", "sleep", "1000"]
        )
        fake = node.cgroup(unit) / container.cgroup.name
        as_user = ["setpriv", "--reuid=nobody", "--clear-groups", "--"]
        node.run([*as_user, "mkdir", f"/sys/fs/cgroup/system.slice/{unit}/{fake.name}"])
        hook.allow(fake, GPU0)
        guard = launch().start()
        guard.await_state(container.scope, "protected", container=container.id)
        guard.await_rounds(4)
        assert set(guard.status()) == {container.scope}
        assert len(guard.ledger()) == 1
        node.run(["systemctl", "stop", unit])
