"""What is named as containers are and is none: nobody's device rules but the host's containers' are gpuguard's."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from tests.e2e import gate
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.lab import hook
from tests.lab.cgroups import remove
from tests.lab.containers import Docker, top
from tests.lab.devices import GPU0
from tests.lab.node import Node
from tests.lab.nspawn import Nspawn
from tests.lab.poll import until
from tests.lab.scope import random_name

ID = secrets.token_hex(32)
SCOPES = (
    f"docker-{ID[1:]}.scope",
    f"docker-{ID}0.scope",
    f"docker-{ID.upper()}.scope",
    f"docker-{ID}-init.scope",
    f"Docker-{ID}.scope",
    f"libpod-conmon-{ID}.scope",
    f"crio-conmon-{ID}.scope",
    f"cri-containerd-{ID}-exec.scope",
    f"my-docker-{ID}.scope",
    rf"docker\x2d{ID}.scope",
    # systemd-machined knows no such machine.
    "machine-train.scope",
)
SERVICE = f"docker-{ID}.service"
USER = 4000
SETTINGS = ("DevicePolicy=strict", "DeviceAllow=/dev/null rwm")


def assert_unknown(guard: Gpuguard, *seen: str) -> None:
    """Assert that gpuguard has looked at all there is, and knows nothing but what was to be `seen`."""
    guard.await_rounds(4)
    assert set(guard.status()) == set(seen)


@contextmanager
def occupied(cgroup: Path, node: Node) -> Iterator[Path]:
    """Make a control group with a sleeping process and the GPU, and remove it afterwards."""
    sleeper = node.daemon(["sleep", "infinity"])
    made = [directory for directory in (cgroup, *cgroup.parents) if not directory.exists()]
    try:
        cgroup.mkdir(parents=True)
        (cgroup / "cgroup.procs").write_text(f"{sleeper.pid}\n", encoding="ascii")
        hook.allow(cgroup, GPU0)
        yield cgroup
    finally:
        sleeper.kill()
        until(lambda: not (cgroup / "cgroup.procs").read_text(encoding="ascii"), 20, "the end of the process")
        remove(made[-1], time.monotonic() + 20.0)  # which is busy until the last process is gone altogether


def as_user(argv: Sequence[str]) -> list[str]:
    """Return the command that runs another one as the user whose manager it is."""
    environment = ["env", f"XDG_RUNTIME_DIR=/run/user/{USER}"]
    return [*environment, "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--", *argv]


@pytest.fixture
def user_scope(node: Node) -> Iterator[str]:
    """Return the control group of a scope of a user manager's, named as Docker's are, with a process in it."""
    node.run(["useradd", f"--uid={USER}", "--create-home", "lab"])
    node.run(["systemctl", "start", f"user@{USER}.service"])
    name = random_name()
    # The process that becomes a scope's has to be the manager's already: it may not take others'.
    inner = ["systemd-run", "--user", "--scope", f"--unit={name}", "sleep", "infinity"]
    node.run(as_user(["systemd-run", "--user", "--unit=lab.service", *inner]))
    show = ["systemctl", "--user", "show", "--property=ControlGroup", "--value", name]

    def group() -> str:
        return node.run(as_user(show), check=False).stdout.strip()

    until(group, 20, "the user's scope")
    yield group()
    node.run(["systemctl", "stop", f"user@{USER}.service"])
    node.run(["userdel", "--remove", "lab"], check=False)


def test_names_that_are_nearly_a_containers(node: Node, launch: Launch) -> None:
    """Names that no runtime gives are no containers', and systemd is told nothing about them."""
    scopes = [node.scope(name) for name in SCOPES]
    node.run(["systemd-run", f"--unit={SERVICE}", *(f"--property={text}" for text in SETTINGS), "sleep", "infinity"])
    for cgroup in [*(scope.cgroup for scope in scopes), node.cgroup(SERVICE)]:
        hook.allow(cgroup, GPU0)
    real = node.scope()
    hook.allow(real.cgroup, GPU0)
    guard = launch().start()
    guard.await_state(real.name, "protected")
    assert_unknown(guard, real.name)
    for name in (*SCOPES, SERVICE):
        assert not any("195" in entry for entry in gate.declared(node, name)), name
    for scope in (*scopes, real):
        scope.stop()
    node.run(["systemctl", "stop", SERVICE])


def test_scope_of_a_user_manager(node: Node, user_scope: str, launch: Launch) -> None:
    """A user can name a scope as he likes: a GPU that is allowed there is nothing that gpuguard keeps."""
    assert f"user@{USER}.service" in user_scope
    name = PurePosixPath(user_scope).name
    cgroup = top(node) / user_scope.lstrip("/")
    if node.mode == "v2":
        hook.allow(cgroup, GPU0)
        guard = launch().start()
        assert_unknown(guard)
    else:  # where user managers have no devices groups, unless somebody makes them
        with occupied(cgroup, node):
            guard = launch().start()
            assert_unknown(guard)
    assert guard.events("found", scope=name) == []
    assert guard.ledger() == {}


@pytest.mark.skipif(Nspawn.why_not() is not None, reason=str(Nspawn.why_not()))
@pytest.mark.parametrize(("service", "kind"), [("systemd-nspawn", "vm"), ("libvirt-lxc", "container")])
def test_machine_of_another_kind(node: Node, launch: Launch, service: str, kind: str) -> None:
    """Of the machines that systemd-machined knows, virtual ones and those of others than nspawn are left alone."""
    sleeper = node.daemon(["sleep", "infinity"])
    numbers = [line.split() for line in Path(f"/proc/{sleeper.pid}/status").read_text().splitlines()]
    [inside] = [line[-1] for line in numbers if line[0] == "NSpid:"]
    machined = ["org.freedesktop.machine1", "/org/freedesktop/machine1", "org.freedesktop.machine1.Manager"]
    identity = ["16", *map(str, range(1, 17))]
    settings = ["1", "DevicePolicy", "s", "closed"]
    arguments = ["vm0", *identity, service, kind, inside, "", *settings]
    node.run(["busctl", "call", *machined, "CreateMachine", "sayssusa(sv)", *arguments])
    hook.allow(node.cgroup("machine-vm0.scope"), GPU0)
    guard = launch().start()
    assert_unknown(guard)
    assert guard.ledger() == {}
    node.run(["systemctl", "stop", "machine-vm0.scope"])


def test_scope_within_a_container(docker: Docker, launch: Launch) -> None:
    """A runtime in a container makes groups below that one's: they are the container's, and none of their own."""
    container = docker.run("outer", [GPU0])
    inner = random_name()
    # On cgroup v2 a group is for processes or for groups below it, where there are controllers; here are none.
    with occupied(container.cgroup / "system.slice" / inner, docker.node):
        guard = launch().start()
        guard.await_state(container.scope, "protected")
        assert_unknown(guard, container.scope)
        assert guard.events("found", scope=inner) == []


def test_groups_beside_systemd(node: Node, launch: Launch) -> None:
    """A group named as Docker's without systemd are, of which no runtime knows, is nobody's container."""
    with occupied(top(node) / "docker" / ID, node):
        guard = launch().start()
        assert_unknown(guard)
        assert guard.ledger() == {}
