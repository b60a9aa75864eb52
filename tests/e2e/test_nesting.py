"""Control groups inside a container (docker in docker, systemd, the steps of a job), and the group that crun makes.

Only on cgroup v1 does the kernel take what is denied to a group from all below it, for good. Who writes from outside
the node cannot be identified there: what it takes was not meant, and is a loss.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.e2e import gate
from tests.e2e.conftest import Launch, MakeScope
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.containers import Crun, Engine
from tests.lab.devices import CTL, GPU0, GPU1, Device
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import Scope

pytestmark = pytest.mark.cgroup("v1")

# A round of the clock comes after the test alone.
NO_ROUNDS = {"poll_interval": "5m"}
DEVICES = (GPU0, GPU1, CTL)


def make(scope: Scope, path: str, *denied: Device, access: str = "rwm") -> Path:
    """Make a control group as a container's own manager does, without some devices; the kernel copies the list."""
    group = scope.cgroup / path
    group.mkdir()
    for device in denied:
        deny(group, device, access)
    return group


def deny(group: Path, device: Device, access: str = "rwm") -> None:
    """Deny a device, as somebody who cannot be identified."""
    (group / "devices.deny").write_text(f"{device.rule} {access}", encoding="ascii")


def revoke(guard: Gpuguard, scope: str, group: Path, device: Device) -> None:
    """Deny a device as an administrator does on the host, and wait until it was seen that this was meant."""
    inner = Path("/") / group.relative_to(guard.node.path("/"))
    guard.await_watched(group)
    with gate.writing(guard.node, f"{device.rule} rwm", f"{inner}/devices.deny"):
        until(lambda: guard.events("revoked", scope=scope), 20, "the revocation")


def enter(group: Path, scope: Scope) -> None:
    """Move the container's process."""
    (group / "cgroup.procs").write_text(str(scope.pid), encoding="ascii")


def has(group: Path) -> list[Device]:
    """Return the devices that a group may use."""
    return [device for device in DEVICES if gate.has(group, device)]


def ready(guard: Gpuguard, scope: str) -> None:
    """Wait until a container and all that is below are known, and writes are heard of."""
    guard.await_state(scope, "protected")
    until(lambda: guard.events("sentinel_standing"), 20, "the sentinel")
    guard.await_rounds(4)


def healed(guard: Gpuguard, scope: Scope, group: Path, device: Device) -> None:
    """Wait until a group below has a device again and that was told."""
    until(lambda: gate.has(group, device), 20, f"{device.rule} in {group}")
    until(lambda: guard.events("restored_below", scope=scope.name), 20, "the news")


def told(guard: Gpuguard, scope: str, losses: int) -> None:
    """Wait until so many losses were told, and that they were repaired, and assert that no more were.

    That is when nothing more can be heard of whom they were done for.
    """
    for kind in ("lost", "repaired"):
        until(partial(_as_many, guard, kind, scope, losses), 20, f"{losses} times {kind}")
    guard.await_rounds()
    assert [len(guard.events(kind, scope=scope)) for kind in ("lost", "repaired")] == [losses, losses]


def _as_many(guard: Gpuguard, kind: str, scope: str, count: int) -> bool:
    return len(guard.events(kind, scope=scope)) >= count


def remembered(guard: Gpuguard, scope: Scope, path: str) -> list[str]:
    """Return the rules that a group below is known to have had, as the ledger has them."""
    text, _ = guard.ledger()[f"{scope.cgroup.stat().st_ino}.json"]
    (rules,) = (rules for name, _, rules, _ in json.loads(text)["nested"] if name == path)
    return list(rules)


@pytest.fixture
def scope(gpu_scope: MakeScope) -> Iterator[Scope]:
    """Return a container with both GPUs; what is made below it goes before it."""
    made = gpu_scope()
    for device in (GPU1, CTL):
        hook.allow(made.cgroup, device)
    yield made
    enter(made.cgroup, made)
    for path in sorted((path for path in made.cgroup.rglob("*") if path.is_dir()), reverse=True):
        path.rmdir()


def test_each_gets_back_what_it_had_itself(scope: Scope, launch: Launch, prober: Prober) -> None:
    """As docker in docker has them: one with all, one without the other GPU, one that may only read, one with none."""
    docker, inner = make(scope, "docker"), make(scope, "docker/4f6a")
    other, reader = make(scope, "docker/11aa", GPU0), make(scope, "docker/22bb", GPU0)
    (reader / "devices.allow").write_text(f"{GPU0.rule} r", encoding="ascii")
    step = make(scope, "step_0", *DEVICES)
    guard = launch().start()
    ready(guard, scope.name)
    deny(scope.cgroup, GPU0)
    healed(guard, scope, inner, GPU0)
    assert [has(group) for group in (docker, inner, other, step)] == [[*DEVICES], [*DEVICES], [GPU1, CTL], []]
    assert gate.has(reader, GPU0, "r")
    assert not gate.has(reader, GPU0, "w")
    assert [prober.open(group, GPU0).allowed for group in (inner, other, step)] == [True, False, False]
    told(guard, scope.name, 1)
    (event,) = guard.events("restored_below", scope=scope.name)
    assert event["groups"] == ["docker", "docker/22bb", "docker/4f6a"]
    assert event["devices"] == [GPU0.path]
    for path in ("step_0", "docker/11aa"):
        assert path not in event["event"]


def test_it_is_given_back_again_and_again(scope: Scope, launch: Launch) -> None:
    """Losses follow one another: below, nothing is left behind."""
    inner = make(scope, "payload.d", GPU1)
    guard = launch(backoff={"max_repairs": 1000}).start()
    ready(guard, scope.name)
    for device in (GPU0, CTL, GPU1, GPU0):
        deny(scope.cgroup, device)
        until(lambda: has(inner) == [GPU0, CTL] and has(scope.cgroup) == [*DEVICES], 20, "all that it had")
        guard.await_rounds()


def test_what_is_denied_in_there_is_its_own_business(scope: Scope, launch: Launch) -> None:
    """What a group alone was denied stays denied, also when the container loses that later and has it back."""
    inner, sister = make(scope, "inner"), make(scope, "sister")
    guard = launch().start()
    ready(guard, scope.name)
    deny(inner, GPU0)
    until(lambda: GPU0.rule not in str(remembered(guard, scope, "inner")), 20, "what is below to be read again")
    assert has(inner) == [GPU1, CTL]
    deny(scope.cgroup, GPU0)
    healed(guard, scope, sister, GPU0)
    guard.await_rounds(3)
    assert has(inner) == [GPU1, CTL]


def test_what_was_meant_stays_away_below(scope: Scope, launch: Launch) -> None:
    """What an administrator takes from the container its groups do not get back, be there another loss or not."""
    inner = make(scope, "inner")
    guard = launch().start()
    ready(guard, scope.name)
    revoke(guard, scope.name, scope.cgroup, GPU0)
    guard.await_rounds(2)
    deny(scope.cgroup, GPU1)
    healed(guard, scope, inner, GPU1)
    guard.await_rounds(2)
    assert has(scope.cgroup) == has(inner) == [GPU1, CTL]


@pytest.mark.invariant(5)
def test_another_one_of_the_same_name_inherits_nothing(scope: Scope, launch: Launch) -> None:
    """A group is its inode: one that has taken the name of one that had the device does not get it."""
    inner, sister = make(scope, "job"), make(scope, "sister")
    guard = launch(guard=NO_ROUNDS).start()
    guard.await_state(scope.name, "protected")
    guard.await_watched(scope.cgroup)
    guard.repair(scope.name)
    inner.rmdir()
    make(scope, "job", GPU0)
    deny(scope.cgroup, GPU0)
    healed(guard, scope, sister, GPU0)
    guard.repair(scope.name)
    assert has(inner) == [GPU1, CTL]


def test_one_with_systemd_in_it(scope: Scope, launch: Launch) -> None:
    """All processes are below: slices and services get back what they had, a service with a policy nothing more."""
    enter(make(scope, "init.scope"), scope)
    make(scope, "system.slice")
    job, closed = make(scope, "system.slice/job.service"), make(scope, "system.slice/closed.service", *DEVICES)
    guard = launch().start()
    ready(guard, scope.name)
    deny(scope.cgroup, GPU0)
    healed(guard, scope, job, GPU0)
    assert [has(scope.cgroup / path) for path in ("init.scope", "system.slice")] == [[*DEVICES]] * 2
    assert has(closed) == []


def test_the_memory_outlives_the_daemon(scope: Scope, launch: Launch) -> None:
    """A container that is struck while no daemon runs is healed by the next one, with all that is below."""
    inner, step = make(scope, "inner"), make(scope, "step", GPU0)
    guard = launch().start()
    ready(guard, scope.name)
    guard.daemon.kill()
    deny(scope.cgroup, GPU0)
    guard.start()
    healed(guard, scope, inner, GPU0)
    assert (has(scope.cgroup), has(step)) == ([*DEVICES], [GPU1, CTL])


def test_by_hand_without_a_daemon(scope: Scope, launch: Launch) -> None:
    """`gpuguard repair` heals what is below, too, and says so."""
    inner = make(scope, "inner")
    guard = launch().start()
    ready(guard, scope.name)
    assert guard.daemon.stop() == 0
    deny(scope.cgroup, GPU0)
    done = guard.run("repair", scope.name)
    assert done.returncode == 0, done.stderr
    assert "to inner" in done.stdout
    assert has(inner) == [*DEVICES]


@pytest.mark.invariant(6)
def test_what_an_ancestor_denies_is_not_granted(node: Node, scope: Scope, launch: Launch) -> None:
    """While the slice denies a device nothing is forced; when it does not any more all come back, from the top."""
    inner = make(scope, "inner")
    guard = launch(backoff={"max_repairs": 1000}).start()
    ready(guard, scope.name)
    above = node.path("/sys/fs/cgroup/devices/system.slice")
    deny(above, GPU0)
    try:
        until(lambda: guard.events("repair_failed", scope=scope.name), 20, "the failure")
        guard.await_rounds(2)
        assert (has(scope.cgroup), has(inner)) == ([GPU1, CTL], [GPU1, CTL])
        assert guard.events("restored_below") == []
    finally:
        hook.allow(above, GPU0, "rwm")
    healed(guard, scope, inner, GPU0)
    assert has(scope.cgroup) == [*DEVICES]


def test_observe_mode_touches_nothing(scope: Scope, launch: Launch) -> None:
    """In observe mode neither the container nor what is below is written."""
    inner = make(scope, "inner")
    guard = launch(guard={"mode": "observe"}).start()
    until(lambda: guard.events("found", scope=scope.name), 20, "the container to be known")
    guard.await_rounds(4)
    deny(scope.cgroup, GPU0)
    guard.await_state(scope.name, "partial")
    guard.await_rounds(2)
    assert has(scope.cgroup) == has(inner) == [GPU1, CTL]


def test_below_a_container_of_an_engine(engine: Engine, launch: Launch) -> None:
    """The same, and the engine removes the container with all that is below it."""
    container = engine.run("outer", [GPU0, GPU1])
    inner, step = container.cgroup / "inner", container.cgroup / "step"
    for group in (inner, step):
        group.mkdir()
    deny(step, GPU0)
    guard = launch().start()
    ready(guard, container.scope)
    deny(container.cgroup, GPU0)
    until(lambda: guard.events("restored_below", scope=container.scope), 20, "the news")
    assert [has(group) for group in (container.cgroup, inner, step)] == [[GPU0, GPU1], [GPU0, GPU1], [GPU1]]
    container.stop()
    until(lambda: guard.events("gone", scope=container.scope), 20, "its end")
    assert not inner.exists()


def test_a_reload_takes_nothing_from_one_with_groups_in_it(node: Node, scope: Scope, launch: Launch) -> None:
    """The kernel refuses systemd's deny-all there, as below the shield: there is nothing to give back."""
    inner = make(scope, "inner")
    guard = launch(guard={"declare": False}).start()
    guard.await_state(scope.name, "at-risk")
    guard.await_rounds(3)
    rules = json.loads(guard.run("explain", scope.name, "--json").stdout)["rules"]
    assert all(rule["after_reload"] for rule in rules if rule["entitled"])
    node.run(["systemctl", "daemon-reload"])
    guard.await_reloads(1)
    guard.await_rounds(2)
    assert has(scope.cgroup) == has(inner) == [*DEVICES]
    assert guard.events("lost", "restored_below", scope=scope.name) == []


class TestGroupOfItsOwn:
    """The runtime has put the container into a group below its scope, as crun does."""

    def test_of_crun(self, crun: Crun, launch: Launch, prober: Prober) -> None:
        """It is guarded: what its group or its scope is denied comes back."""
        container = crun.run("crunned", [GPU0])
        scope = container.node.cgroup(container.scope)
        assert container.cgroup.parent == scope
        guard = launch(backoff={"max_repairs": 1000}).start()
        guard.await_state(container.scope, "protected")
        status = guard.status()[container.scope]
        assert [device["device"] for device in status["devices"]] == [GPU0.rule]
        for group in (container.cgroup, scope, container.cgroup):
            deny(group, GPU0)
            until(lambda: gate.has(container.cgroup, GPU0, "rwm"), 20, f"the device after a loss in {group}")
            assert prober.open(container.cgroup, GPU0).allowed
            guard.await_rounds()
        container.node.run(["systemctl", "daemon-reload"])
        guard.await_rounds()
        assert prober.open(container.cgroup, GPU0).allowed
        told(guard, container.scope, 3)

    def test_that_starts_while_the_daemon_runs(self, crun: Crun, launch: Launch) -> None:
        """It is found, learnt from its own group and guarded, and forgotten when it ends."""
        guard = launch().start()
        until(lambda: guard.events("sentinel_standing"), 20, "the sentinel")
        container = crun.run("late", [GPU0, CTL])
        ready(guard, container.scope)
        (found,) = guard.events("found", scope=container.scope)
        assert found["devices"] == [GPU0.path, CTL.path]
        deny(container.cgroup, CTL)
        until(lambda: has(container.cgroup) == [GPU0, CTL], 20, "what was lost")
        container.stop()
        until(lambda: guard.events("gone", scope=container.scope), 20, "the news")

    @pytest.mark.parametrize("where", ["container", "scope"])
    def test_what_was_meant_stays_away(self, crun: Crun, launch: Launch, where: str) -> None:
        """An administrator takes the device from crun's group, or from the scope: that is respected."""
        container = crun.run(f"revoked-{where}", [GPU0, GPU1])
        guard = launch().start()
        ready(guard, container.scope)
        group = container.cgroup if where == "container" else container.cgroup.parent
        revoke(guard, container.scope, group, GPU0)
        guard.await_rounds(3)
        assert has(container.cgroup) == [GPU1]

    def test_is_explained(self, crun: Crun, launch: Launch) -> None:
        """The group that denies is named, and no reload changes anything there."""
        container = crun.run("explained", [GPU0, GPU1])
        guard = launch(guard={"mode": "observe"}).start()
        guard.await_state(container.scope, "protected")
        deny(container.cgroup, GPU0)
        guard.await_state(container.scope, "partial")
        done = guard.run("explain", container.scope, "--json")
        assert done.returncode == 0, done.stderr
        found = {rule["device"]: rule for rule in json.loads(done.stdout)["rules"]}
        assert [found[device.rule]["after_reload"] for device in (GPU0, GPU1)] == [False, True]
        assert [denier["cgroup"] for denier in found[GPU0.rule]["denied_by"]] == [container.group]

    def test_groups_below_it(self, crun: Crun, launch: Launch) -> None:
        """What such a container has made itself is healed after it."""
        container = crun.run("nested", [GPU0, GPU1])
        inner, step = container.cgroup / "inner", container.cgroup / "step"
        try:
            for group in (inner, step):
                group.mkdir()
            deny(step, GPU0)
            guard = launch().start()
            ready(guard, container.scope)
            deny(container.cgroup, GPU0)
            until(lambda: guard.events("restored_below", scope=container.scope), 20, "the news")
            assert [has(group) for group in (container.cgroup, inner, step)] == [[GPU0, GPU1], [GPU0, GPU1], [GPU1]]
            (event,) = guard.events("restored_below")
            assert event["groups"] == ["container/inner"]
        finally:
            for group in (inner, step):
                group.rmdir()

    def test_below_a_scope_with_a_filter(self, scope: Scope, launch: Launch) -> None:
        """As crun 1.18 and later have it: the scope lacks the rule as well, and gets it first."""
        payload = make(scope, "container")
        enter(payload, scope)
        guard = launch(backoff={"max_repairs": 1000}).start()
        guard.await_state(scope.name, "protected")
        for group in (scope.cgroup, payload, scope.cgroup):
            deny(group, GPU0)
            until(lambda: has(payload) == has(scope.cgroup) == [*DEVICES], 20, f"what was lost in {group}")
            guard.await_rounds()
        told(guard, scope.name, 3)

    def test_a_jobs_only_step_is_not_the_container(self, scope: Scope, launch: Launch) -> None:
        """All processes are in one group that was given less: what it lacks was not lost."""
        step = make(scope, "step_0", GPU0)
        enter(step, scope)
        guard = launch().start()
        ready(guard, scope.name)
        assert has(step) == [GPU1, CTL]
        assert guard.events("lost", scope=scope.name) == []
