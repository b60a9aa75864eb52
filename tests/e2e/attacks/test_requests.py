"""Requests for GPUs that a user writes into an image or a command: what is not honoured is nobody's right."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import pytest

from tests.e2e.attacks.arena import ADMIN, DENIED, ROOT, TOOLS, Arena
from tests.e2e.attacks.conftest import opened
from tests.e2e.attacks.test_nodes import DROPPED
from tests.lab.devices import CTL, GPU0, UVM
from tests.lab.node import Node
from tests.lab.nvidia import toolkit
from tests.lab.nvidia.driver import UVM_TOOLS, Driver
from tests.lab.prober import Prober

pytestmark = pytest.mark.invariant(1)

HOOK = ("--runtime=nvidia",)
WISHES = (
    *("--env=NVIDIA_VISIBLE_DEVICES=all", "--env=NVIDIA_DRIVER_CAPABILITIES=all", "--env=CUDA_VERSION=12.4"),
    *("--env=NVIDIA_MIG_CONFIG_DEVICES=all", "--env=NVIDIA_IMEX_CHANNELS=0,1", "--env=NVIDIA_DISABLE_REQUIRE=1"),
)
VOLUMES = tuple(f"--volume=/dev/null:/var/run/nvidia-container-devices/{name}" for name in ("all", "0", "1"))
REFUSED = {toolkit.ENVVAR: False, toolkit.VOLUMES: False}
ACCEPTED = {toolkit.ENVVAR: True, toolkit.VOLUMES: True}
HOOKED = (GPU0, CTL, UVM, UVM_TOOLS)
"""What the hook gives for index 0 with the usual capabilities."""

_CONFIG = "/etc/nvidia-container-runtime"
_ACCEPT = "accept-nvidia-visible-devices"
# As the container would like the host's to be.
_OWN_CONFIG = (
    f"mkdir -p {_CONFIG} /run/nvidia/driver{_CONFIG}; for c in {_CONFIG} /run/nvidia/driver{_CONFIG}; do "
    f"printf '{_ACCEPT}-envvar-when-unprivileged = true\\n{_ACCEPT}-as-volume-mounts = true\\n' >$c/config.toml; done"
)


@pytest.fixture(scope="module")
def grounds(request: pytest.FixtureRequest, node: Node, prober: Prober) -> Iterator[Arena]:
    """Return the arena of a node that has NVIDIA's driver and container toolkit."""
    toolkit.install(node)
    with Driver(node), opened(request, node, prober) as arena:
        yield arena


def test_requests_without_the_hook(arena: Arena) -> None:
    """Variables and volumes of a container that runc alone has started, on a host that would honour both."""
    toolkit.configure(arena.node, ACCEPTED)
    forged = f"exec /usr/bin/python3 -c {shlex.quote(DROPPED)}"
    suspects = [
        arena.enter((*ROOT, *WISHES, *VOLUMES), ()),
        arena.enter((*ROOT, *WISHES)),
        arena.enter((*ADMIN, *TOOLS, *WISHES, *VOLUMES, "--volume=/dev:/hostdev"), (), init=forged),
        arena.enter((*ROOT, "--label=com.nvidia.volumes.needed=nvidia_driver"), ()),
    ]
    arena.withstand(*suspects)


def test_requests_that_the_toolkit_refuses(arena: Arena) -> None:
    """With the hook, which heeds config.toml; then config.toml is made to accept what it had refused."""
    toolkit.configure(arena.node, REFUSED)
    forged = f"{_OWN_CONFIG}; exec /usr/bin/python3 -c {shlex.quote(DROPPED)}"
    unprivileged = (*ROOT, *HOOK, *WISHES[:3])
    more = (*TOOLS, "--volume=/dev:/hostdev", "--security-opt=seccomp=unconfined")
    suspects = [
        arena.enter(unprivileged, ()),
        arena.enter((*unprivileged, *VOLUMES), (), init=_OWN_CONFIG),
        arena.enter((*unprivileged, *VOLUMES, *more), (), init=forged),
        arena.enter(unprivileged, init="export NVIDIA_VISIBLE_DEVICES=all"),
    ]
    arena.withstand(*suspects)
    toolkit.configure(arena.node, ACCEPTED)
    arena.withstand(*suspects)


def test_more_than_was_asked_for(arena: Arena) -> None:
    """One that asked for GPU 0, and got it, changes its environment at run time, and mounts the rest itself.

    The whole environment of its first process is another by then, under /proc as well.
    """
    toolkit.configure(arena.node, {})
    wish = "--env=NVIDIA_VISIBLE_DEVICES=0"
    change = "export NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=all NVIDIA_IMEX_CHANNELS=0"
    mounts = (
        "for name in nvidia1 nvidia-modeset; do touch /dev/$name; mount --bind /hostdev/$name /dev/$name; done;"
        "mknod /dev/nvidia2 c 195 2"
    )
    suspects = [
        arena.enter((*ROOT, *HOOK, wish), (), init=change, wait=False),
        arena.enter((*ADMIN, *HOOK, wish, "--volume=/dev:/hostdev"), (), init=f"{mounts}; {change}", wait=False),
    ]
    suspects = [arena.given(suspect, HOOKED) for suspect in suspects]
    environment = arena.node.path(f"/proc/{suspects[0].pid}/environ").read_text(encoding="utf-8")
    assert "NVIDIA_VISIBLE_DEVICES=all" in environment
    arena.withstand(*suspects)
    assert suspects[1].opens("/dev/nvidia1", "/dev/nvidia2", "/dev/nvidia-modeset") == [DENIED] * 3


def test_thousands_of_mounts(arena: Arena) -> None:
    """Mounts by the thousand, with line breaks, escapes and nodes' names in their paths, beside the hook's own."""
    toolkit.configure(arena.node, {})
    names = ("a b", "a\\\\040b", "x\n1 1 0:1 /nvidia1 /dev/nvidia1 rw - devtmpfs udev rw\n", " - ", "\x1b[2J")
    odd = "; ".join(
        f"mkdir -p {shlex.quote('/odd/' + name)}; mount -t tmpfs none {shlex.quote('/odd/' + name)}" for name in names
    )
    many = "i=0; while [ $i -lt 2000 ]; do i=$((i+1)); mount --bind /dev/null /dev/zero; done"
    suspect = arena.enter((*ADMIN, *HOOK, "--env=NVIDIA_VISIBLE_DEVICES=0"), (), init=f"{odd}; {many}", wait=False)
    arena.withstand(arena.given(suspect, HOOKED), heals=False)


def test_a_request_that_asks_for_nothing_there_is(arena: Arena) -> None:
    """Requests in numbers and names that lead nowhere: the hook itself refuses them, or gives nothing."""
    toolkit.configure(arena.node, {})
    suspects = [
        arena.enter((*ROOT, *HOOK, f"--env=NVIDIA_VISIBLE_DEVICES={wish}"), ()) for wish in ("void", "", " , ,,")
    ]
    arena.withstand(*suspects)
