"""On cgroup v2 a device is open when every program lets it through, and one of them alone is systemd's to write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuguard.model.rule import Rule
from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import Gpuguard
from tests.e2e.witness import BusWitness, Witness
from tests.lab import bpf, device_programs
from tests.lab.containers import Engine
from tests.lab.devices import FUSE, GPU0, GPU1, Device
from tests.lab.errors import LabError
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import BASICS, Scope, random_name

pytestmark = pytest.mark.cgroup("v2")

NVIDIA = Rule.parse("c 195:* rwm")
PLAIN = [Rule.parse(text) for text in ("c *:* m", "b *:* m", "c 1:3 rwm", "c 1:5 rwm", "c 1:9 rwm", "c 136:* rwm")]
USB = Device("/dev/bus/usb/001/001", 189, 0)
ODD = Device("/dev/odd", 77, 77)  # what `c *:77` lets through
DECLARED = ("/dev/char/195:0 rw",)


@contextmanager
def attached(cgroup: Path, code: bytes, licence: str = "Apache") -> Iterator[int]:
    """Attach one more program for the time of the block, and give its id."""
    with bpf.program(code, licence=licence) as program:
        bpf.attach(cgroup, program.fd)
        try:
            yield program.id
        finally:
            bpf.detach(cgroup, program.fd)


def declarations(guard: Gpuguard) -> float:
    """Return how often systemd has been told anything, and it worked."""
    return guard.total("gpuguard_repairs_total", method="declare", result="ok")


def reason(guard: Gpuguard, scope: Scope) -> str:
    """Return what `gpuguard status` says of a scope's state."""
    return str(guard.status()[scope.name]["reason"])


@pytest.mark.invariant(2)
@pytest.mark.invariant(8)
@pytest.mark.parametrize("level", ["scope", "slice"])
def test_what_another_program_denies_is_told_and_left(
    node: Node, gpu_scope: MakeScope, launch: Launch, prober: Prober, level: str
) -> None:
    """A container is `lost` to a foreign program, which is named; nothing is attached, detached or declared."""
    scope = gpu_scope()
    guard = launch().start()
    guard.await_state(scope.name, "protected")
    deeds = guard.deeds()
    group = scope.cgroup if level == "scope" else scope.cgroup.parent
    whose, named = ("the runtime's program", f"/system.slice/{scope.name}")
    if level == "slice":
        whose, named = "program", "/system.slice"
    with BusWitness(node) as bus:
        with attached(group, device_programs.runc([NVIDIA], allow=False)) as number:
            guard.await_state(scope.name, "lost")
            assert prober.open(scope.cgroup, GPU0).denied
            before = gate.programs(scope.cgroup, effective=True)
            assert number in before
            guard.await_rounds(4)
            node.run(["systemctl", "set-property", scope.name, "Description=touched"])
            guard.await_rounds()
            assert gate.programs(scope.cgroup, effective=True) == before
            assert reason(guard, scope).startswith("blocked: ")
            assert f"{whose} {number} on {named} denies {GPU0.rule} rw" in reason(guard, scope)
            (told,) = guard.events("repair_failed", scope=scope.name)
            assert told["reason"] == reason(guard, scope)
        bus.settle()
        assert bus.calls("SetUnitProperties") == []
    guard.await_state(scope.name, "protected")
    assert guard.deeds() == deeds
    assert guard.events("fight") == []


def test_partly_blocked_is_mended_where_that_is_possible(node: Node, launch: Launch, prober: Prober) -> None:
    """Of two lost devices the one that systemd's program alone denies comes back; the other's blocker is named."""
    scope = node.scope(random_name())
    replace_programs(scope.cgroup, [Rule.parse(f"{device.rule} rw") for device in (GPU0, GPU1)])
    guard = launch(guard={"declare": False}).start()
    guard.await_state(scope.name, "at-risk")
    with attached(scope.cgroup, device_programs.runc([Rule.parse(f"{GPU1.rule} rwm")], allow=False)) as number:
        node.run(["systemctl", "daemon-reload"])
        until(lambda: prober.open(scope.cgroup, GPU0).allowed, 20, "the repair")
        guard.await_state(scope.name, "partial")
        deeds = guard.deeds()
        guard.await_rounds(3)
        assert guard.deeds() == deeds
        assert f"program {number} on" in reason(guard, scope)
        assert prober.open(scope.cgroup, GPU1).denied
    until(lambda: prober.open(scope.cgroup, GPU1).allowed, 20, "the second device")
    guard.await_state(scope.name, "protected")
    scope.stop()


def replace_programs(cgroup: Path, more: list[Rule]) -> None:
    """Do as runc does: put a program of the runtime's in the place of systemd's."""
    with bpf.program(device_programs.runc([*PLAIN, *more])) as program:
        bpf.attach(cgroup, program.fd)
        for number in gate.programs(cgroup):
            if number != program.id:
                with bpf.opened(number) as old:
                    bpf.detach(cgroup, old)


class Nested:
    """A scope as crun lays it out: systemd's program on the scope, the processes and crun's program one below."""

    def __init__(self, node: Node, declared: tuple[str, ...]) -> None:
        self.scope = Scope(node, random_name("libpod"), [*BASICS, *declared], "strict", ["Delegate=yes"])
        self.name = self.scope.name
        self.inner = self.scope.cgroup / "container"
        self.inner.mkdir()
        for pid in (self.scope.cgroup / "cgroup.procs").read_text().split():
            (self.inner / "cgroup.procs").write_text(pid)
        rules = [(rule, True) for rule in (*PLAIN, Rule.parse(f"{GPU0.rule} rwm"))]
        with bpf.program(device_programs.crun(rules), licence="GPL") as program:
            bpf.attach(self.inner, program.fd)


def test_crun_is_judged_at_both_levels(node: Node, launch: Launch, prober: Prober) -> None:
    """With crun the scope's program and the one below it decide together; what the scope's denies is declared."""
    nested = Nested(node, DECLARED)
    guard = launch().start()
    guard.await_state(nested.name, "protected")
    assert guard.total("gpuguard_repairs_total") == 0
    before = gate.programs(nested.inner)
    for times in range(1, 4):
        gate.take_away(node, nested.name, GPU0)
        until(lambda n=times: declarations(guard) >= n, 20, "the repair")  # type: ignore[misc]
        assert declarations(guard) == times
        assert prober.open(nested.inner, GPU0).allowed
        guard.await_state(nested.name, "protected")
    assert gate.programs(nested.inner) == before

    with attached(nested.inner, device_programs.runc([NVIDIA], allow=False)) as number:
        guard.await_state(nested.name, "lost")
        assert f"program {number} on /system.slice/{nested.name}/container denies" in reason(guard, nested.scope)
    guard.await_state(nested.name, "protected")
    node.run(["systemctl", "daemon-reload"])
    assert prober.open(nested.inner, GPU0).allowed
    assert prober.open(nested.inner, GPU1).denied
    nested.scope.stop()


def test_crun_whose_scope_denies_from_the_start(node: Node, launch: Launch, prober: Prober) -> None:
    """Where the scope's program never let the GPU through, it was never open: nobody is given anything."""
    nested = Nested(node, ())
    guard = launch().start()
    guard.await_rounds(4)
    assert prober.open(nested.inner, GPU0).denied
    assert guard.total("gpuguard_repairs_total") == 0
    nested.scope.stop()


@pytest.mark.invariant(1)
def test_what_a_container_attaches_to_its_own_group_gives_it_nothing(
    node: Node, launch: Launch, prober: Prober
) -> None:
    """A container as crun's reaches its group and not its scope: a program there proves nothing."""
    guard = launch().start()
    nested = Nested(node, DECLARED)
    with bpf.program(device_programs.runc([*PLAIN, NVIDIA])) as program:
        bpf.attach(nested.inner, program.fd)
        for number in gate.programs(nested.inner):
            if number != program.id:
                with bpf.opened(number) as old:
                    bpf.detach(nested.inner, old)
    guard.await_state(nested.name, "protected")
    guard.await_rounds(3)
    assert prober.open(nested.inner, GPU0).allowed
    assert prober.open(nested.inner, GPU1).denied
    assert guard.total("gpuguard_repairs_total") == 0
    nested.scope.stop()


@pytest.mark.invariant(2)
def test_what_cannot_be_spelt_hinders_until_a_reload_has_taken_it(
    engine: Engine, launch: Launch, prober: Prober
) -> None:
    """With a rule like `c *:77` nothing is declared; once a reload has taken it, the rest is mended."""
    rules = [f"--device-cgroup-rule={text}" for text in ("c 189:* rwm", "c *:77 rw")]
    container = engine.run("trainer", [GPU0, FUSE], rules)
    devices = (GPU0, FUSE, USB, ODD)
    assert prober.denied(container.cgroup, devices) == []
    guard = launch().start()
    guard.await_state(container.scope, "at-risk")
    with Witness([container.cgroup]) as witness:
        guard.await_rounds(3)
        assert witness.changes() == []
    assert guard.total("gpuguard_repairs_total") == 0
    assert "undeclarable: a declaration would take away c *:77 rw" in guard.status()[container.scope]["reason"]
    assert prober.denied(container.cgroup, devices) == []

    engine.node.run(["systemctl", "daemon-reload"])
    assert prober.denied(container.cgroup, (GPU0, FUSE, USB), within=20.0) == []
    assert prober.open(container.cgroup, ODD).denied, "systemd took it, and nobody can tell it otherwise"
    guard.await_state(container.scope, "partial")  # `c *:77` is 195:77 as well
    assert guard.status()[container.scope]["reason"] == "undeclarable: systemd has no spelling for c *:77 rw"
    deeds = guard.deeds()
    with prober.loop(container.cgroup, GPU0) as loop:
        for times in range(1, 5):
            engine.node.run(["systemctl", "daemon-reload"])
            guard.await_reloads(1 + times)
            guard.await_rounds(3)
        report = loop.stop()
    assert report.denied == 0
    assert guard.deeds() == deeds
    assert prober.denied(container.cgroup, (GPU0, FUSE, USB)) == []


@pytest.mark.invariant(8)
@pytest.mark.invariant(9)
def test_a_unit_that_systemd_does_not_filter_is_told_nothing(node: Node, launch: Launch, prober: Prober) -> None:
    """With policy auto and an empty list systemd writes no program: the runtime's is all there is, and stays so."""
    scope = Scope(node, random_name(), [], "auto")
    replace_programs(scope.cgroup, [Rule.parse(f"{GPU0.rule} rw")])
    with BusWitness(node) as bus, Witness([scope.cgroup]) as witness:
        guard = launch().start()
        guard.await_state(scope.name, "protected")
        for argv in (["daemon-reload"], ["daemon-reexec"], ["set-property", scope.name, "TasksMax=77"]):
            node.run(["systemctl", *argv])
        guard.await_reloads(2)
        guard.await_rounds()
        bus.settle()
        assert witness.changes() == []
        assert bus.calls("SetUnitProperties") == []
    assert guard.total("gpuguard_repairs_total") == 0
    assert prober.open(scope.cgroup, GPU0).allowed
    scope.stop()


@pytest.fixture
def pinned(node: Node) -> Iterator[str]:
    """Pin a program that lets GPU0 through in a bpffs of the node; give its path there."""
    mount = "/run/lab-bpf"
    node.run(["mkdir", "-p", mount])
    try:
        node.run(["mount", "-t", "bpf", "bpf", mount])
    except LabError as error:
        pytest.skip(f"no bpffs can be mounted in a node here: {error}")
    path = f"{mount}/devices"
    with bpf.program(device_programs.runc([*PLAIN, Rule.parse(f"{GPU0.rule} rw")])) as program:
        bpf.pin(node.path(path), program.fd)
    yield path
    node.run(["umount", mount])


@pytest.mark.invariant(9)
def test_a_unit_with_a_program_of_its_own_is_given_no_entry(
    node: Node, launch: Launch, prober: Prober, pinned: str
) -> None:
    """A scope with BPFProgram=device: is at risk for a reason, and systemd is never told anything about it."""
    scope = Scope(node, random_name(), [], "auto", [f"BPFProgram=device:{pinned}"])
    if prober.open(scope.cgroup, GPU1).allowed:
        scope.stop()
        pytest.skip("this systemd (249 and later can) attaches no program of BPFProgram= to a scope")
    with BusWitness(node) as bus, Witness([scope.cgroup]) as witness:
        guard = launch().start()
        guard.await_state(scope.name, "at-risk")
        before = gate.programs(scope.cgroup, effective=True)
        for verb in ("daemon-reload", "daemon-reexec"):
            node.run(["systemctl", verb])
        guard.await_reloads(2)
        guard.await_rounds()
        bus.settle()
        assert "BPFProgram=" in reason(guard, scope)
        assert [call for call in bus.calls("SetUnitProperties") if scope.name in call.arguments] == []
        assert gate.programs(scope.cgroup, effective=True) == before
        assert witness.strangers(node.init) == []
    assert guard.total("gpuguard_repairs_total") == 0
    assert prober.open(scope.cgroup, GPU0).allowed
    scope.stop()
