"""Device nodes that a container makes, mounts or is shown: none of them is a right to the device."""

from __future__ import annotations

import pytest

from tests.e2e.attacks.arena import ADMIN, DENIED, ROOT, TOOLS, Arena
from tests.lab.devices import GPU1
from tests.lab.poll import until

pytestmark = pytest.mark.invariant(1)


def test_nodes_of_foreign_gpus(arena: Arena) -> None:
    """Nodes of every GPU, of the control device and of uvm, under NVIDIA's names and others.

    Made by a container with a GPU and by one without, which does not even become a GPU container.
    """
    suspects = arena.enter(), arena.enter(given=())
    nodes = ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/hidden", "/dev/dri/renderD128")
    for suspect in suspects:
        suspect.sh(
            "mknod /dev/nvidia1 c 195 1; mknod /dev/nvidiactl c 195 255; mknod /dev/nvidia-uvm c 510 0;"
            "mknod /hidden c 195 1; mkdir /dev/nvidia-caps /dev/dri; mknod /dev/nvidia-caps/nvidia-cap1 c 511 1;"
            "mknod /dev/dri/renderD128 c 195 1; chmod 666 /dev/nvidia*"
        )
        assert suspect.opens(*nodes) == [DENIED] * 5
    arena.withstand(*suspects)
    assert [suspect.opens(*nodes) for suspect in suspects] == [[DENIED] * 5] * 2
    assert suspects[1].scope not in arena.guard.status()


def test_a_fake_dev(arena: Arena) -> None:
    """A /dev of its own, with /dev/char links that say another device, and links between GPUs."""
    suspect = arena.enter(ADMIN)
    suspect.sh(
        "mkdir -p /fake/char; mount -t tmpfs devtmpfs /fake; mkdir -p /fake/char;"
        "mknod /fake/char/195:0 c 195 1; mknod /fake/nvidia0 c 195 1; ln -s ../nvidia0 /fake/char/195:1;"
        "mknod /fake/null c 195 1; mkdir -p /dev/char; rm -f /dev/nvidia0; ln -s nvidia1 /dev/nvidia0;"
        "mknod /dev/nvidia1 c 195 1; ln -sf ../nvidia1 /dev/char/195:0; mknod /dev/char/1:3 c 195 1;"
        "mount --bind /fake /dev; mount --bind /fake /run 2>/dev/null || true"
    )
    assert suspect.opens("/dev/nvidia0", "/dev/char/195:0") == [DENIED] * 2
    arena.withstand(suspect)
    assert suspect.opens("/dev/nvidia0", "/dev/char/195:0") == [DENIED] * 2


def test_mounts_over_nodes(arena: Arena) -> None:
    """Its own nodes and the host's mounted over /dev/nvidia0 and beside it, as the hook mounts them."""
    suspect = arena.enter((*ADMIN, "--volume=/dev:/hostdev"))
    suspect.sh(
        "mkdir /made; mount -t tmpfs devtmpfs /made; mknod /made/nvidia1 c 195 1;"
        "mount --bind /made/nvidia1 /dev/nvidia0;"
        "for name in nvidia1 nvidiactl nvidia-uvm; do touch /dev/$name; mount --bind /hostdev/$name /dev/$name; done;"
        "touch /dev/nvidia7; mount --bind /hostdev/nvidia1 /dev/nvidia7"
    )
    nodes = ("/dev/nvidia0", "/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia7")
    assert suspect.opens(*nodes) == [DENIED] * 5
    arena.withstand(suspect)
    assert suspect.opens(*nodes) == [DENIED] * 5


def test_volumes_that_are_devices(arena: Arena) -> None:
    """`-v /dev/nvidia1:/dev/nvidia1`: a mount that looks like the hook's, asked for by a user."""
    volumes = [f"--volume={path}:{path}" for path in ("/dev/nvidia1", "/dev/nvidiactl", "/dev/nvidia-uvm")]
    args = (*ROOT, *volumes, "--env=NVIDIA_VISIBLE_DEVICES=all")
    suspects = arena.enter(args), arena.enter(args, given=())
    for suspect in suspects:
        assert suspect.opens(GPU1.path, "/dev/nvidiactl") == [DENIED] * 2
    arena.withstand(*suspects)
    for suspect in suspects:
        assert suspect.opens(GPU1.path, "/dev/nvidiactl") == [DENIED] * 2


# What remains in the end is a first process without any capability, with mounts that no `mounts` entry explains.
DROPPED = """
import ctypes, os, pathlib
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result: raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
CLONE_NEWNS, CLONE_NEWUSER, MS_BIND, PR_CAPBSET_DROP = 0x20000, 0x10000000, 4096, 24
checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS))
for name, text in (("setgroups", "deny"), ("uid_map", "0 0 1"), ("gid_map", "0 0 1")):
    pathlib.Path("/proc/self", name).write_text(text)
for name in ("nvidia1", "nvidiactl", "nvidia-uvm"):
    pathlib.Path("/dev", name).touch()
    checked(libc.mount(f"/hostdev/{name}".encode(), f"/dev/{name}".encode(), None, MS_BIND, None))
for number in range(41): libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0)
open("/ready", "w").close()
os.execv("/bin/sleep", ["/bin/sleep", "1000000"])
"""


def test_mounts_of_a_user_namespace_without_capabilities(arena: Arena) -> None:
    """The first process makes such mounts in a user namespace of its own, and then drops its whole bounding set."""
    args = (
        *ROOT,
        *TOOLS,
        "--volume=/dev:/hostdev",
        "--security-opt=seccomp=unconfined",
        "--env=NVIDIA_VISIBLE_DEVICES=all",
    )
    suspect = arena.enter(args, init=f"exec /usr/bin/python3 -c '{DROPPED}'")
    assert suspect.container is not None
    pid = suspect.container.pid
    until(lambda: (arena.node.path(f"/proc/{pid}/root/ready")).exists(), 20, "the mounts")
    status = arena.node.path(f"/proc/{pid}/status").read_text()
    assert "CapBnd:\t0000000000000000" in status
    mounts = arena.node.path(f"/proc/{pid}/mountinfo").read_text()
    assert " /nvidia1 /dev/nvidia1 " in mounts or "/dev/nvidia1 /dev/nvidia1 " in mounts
    arena.withstand(suspect)
