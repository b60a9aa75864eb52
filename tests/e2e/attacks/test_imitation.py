"""Scopes of a user's own manager that are named as those of containers."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator

import pytest

from tests.e2e.attacks.arena import Arena
from tests.lab.devices import GPU0, GPU1
from tests.lab.node import ROOT, Node
from tests.lab.poll import until

pytestmark = [pytest.mark.invariant(1), pytest.mark.invariant(6)]

_UID = 4242
_NAME = "lab-tenant"
_MANAGER = f"/user.slice/user-{_UID}.slice/user@{_UID}.service"


@pytest.fixture(scope="module")
def tenant(node: Node) -> Iterator[str]:
    """Give the node a user with a manager of his own; return the way to run programs as he does."""
    node.run(["useradd", "--create-home", f"--uid={_UID}", _NAME])
    started = node.run(["systemctl", "start", f"user@{_UID}.service"], check=False)
    if started.returncode:
        pytest.skip(f"no user manager starts in a node here: {started.stderr}")
    yield f"setpriv --reuid {_UID} --regid {_UID} --clear-groups env XDG_RUNTIME_DIR=/run/user/{_UID}"
    node.run(["systemctl", "stop", f"user@{_UID}.service"])


def test_scopes_of_a_user_manager(arena: Arena, tenant: str) -> None:
    """`systemd-run --user --scope --unit docker-<id>`, and groups that the user makes by hand below his own."""
    node = arena.node
    names = [f"{prefix}-{secrets.token_hex(32)}.scope" for prefix in ("docker", "libpod", "crio", "cri-containerd")]
    for name in names:
        run = f"systemd-run --user --scope --collect --property=DeviceAllow=/dev/nvidia1 --unit={name} sleep 1000"
        node.run(["sh", "-c", f"{tenant} {run} >/dev/null 2>&1 &"])
    unified = node.path("/sys/fs/cgroup" if node.mode == "v2" else "/sys/fs/cgroup/unified")
    groups = [unified / f"{_MANAGER[1:]}/app.slice/{name}" for name in names]
    until(lambda: all(group.exists() for group in groups), 20, "the scopes")
    byhand = f"{_MANAGER}/app.slice/docker-{secrets.token_hex(32)}.scope/libpod-payload-{secrets.token_hex(32)}"
    root = "/sys/fs/cgroup" if node.mode == "v2" else "/sys/fs/cgroup/unified"
    node.run(["sh", "-c", f"exec {tenant} mkdir -p {root}{byhand}"])
    before = [sorted(path.name for path in group.iterdir()) for group in groups]

    arena.withstand()

    assert [name for name in names if name in arena.guard.status()] == []
    assert [sorted(path.name for path in group.iterdir()) for group in groups] == before
    if node.mode == "v2":
        # Nobody restricts a user's own programs: the attack is upon the guard, not upon the device.
        assert not any(arena.denied(dict.fromkeys(groups, (GPU0, GPU1))).values())
    ledger = "".join(text for text, _ in arena.guard.ledger().values())
    assert "user.slice" not in ledger
    asked = arena.guard.output()
    assert not any(name in asked for name in names), "nobody has even looked at them"


def test_units_that_a_user_asks_the_system_for(arena: Arena, tenant: str) -> None:
    """What systemd refuses to a user it refuses, and gpuguard's own face is not for him either."""
    node = arena.node
    scope = arena.honest.scope
    calls = (
        f"systemd-run --scope --unit=docker-{'e' * 64} true",
        f"systemctl set-property --runtime {scope} DeviceAllow=",
        f"{sys.executable} -m gpuguard repair --config={arena.guard.config}",
        f"{sys.executable} -m gpuguard release --config={arena.guard.config} {scope}",
        "sh -c 'ls /run/gpuguard/ledger'",
    )
    for call in calls:
        done = node.run(["sh", "-c", f"cd {ROOT} && exec {tenant} {call}"], check=False)
        assert done.returncode != 0, (call, done.stdout)
    arena.withstand()
