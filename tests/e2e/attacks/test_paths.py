"""What a container puts where the host has what gpuguard reads: below a container's root nothing is ever opened."""

from __future__ import annotations

import pytest

from tests.e2e.attacks.arena import ADMIN, Arena, Suspect
from tests.e2e.attacks.bait import Bait
from tests.lab.devices import GPU0
from tests.lab.poll import until

pytestmark = pytest.mark.invariant(1)

_BUNDLES = (
    "/run/containerd/io.containerd.runtime.v2.task/k8s.io",
    "/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby",
    "/run/runc",
    "/run/docker/runtime-runc/moby",
    "/var/lib/docker/containers",
    "/var/lib/containers/storage/overlay-containers",
)
_DIRECTORIES = (
    "/etc/nvidia-container-runtime",
    "/run/nvidia/driver/etc/nvidia-container-runtime",
    "/usr/bin/.config/nvidia-container-runtime",
    "/etc/docker",
    "/etc/cdi",
    "/run/gpuguard",
    "/run/gpuguard/ledger",
    "/etc/gpuguard",
    "/fake/driver/nvidia/gpus/0000:00:00.0",
    "/dev/char",
)
_FILES = (
    "/etc/nvidia-container-runtime/config.toml",
    "/run/nvidia/driver/etc/nvidia-container-runtime/config.toml",
    "/usr/bin/.config/nvidia-container-runtime/config.toml",
    "/etc/docker/daemon.json",
    "/etc/cdi/nvidia.yaml",
    "/etc/gpuguard/gpuguard.toml",
    "/run/gpuguard/control.sock",
    "/fake/devices",
    "/fake/driver/nvidia/version",
    "/fake/driver/nvidia/gpus/0000:00:00.0/information",
)
_ACCEPT = "accept-nvidia-visible-devices"
_ANSWERS = f"{_ACCEPT}-envvar-when-unprivileged = true\\n{_ACCEPT}-as-volume-mounts = true\\n"
# How each file is made; $1 is its path.
KINDS = {
    "text": f"printf '{_ANSWERS}' >$1",
    "fifo": "mkfifo $1",
    "huge": "truncate -s 1000G $1",
    "endless": "mknod $1 c 1 5",
    "link to the host": "ln -s /proc/1/root/proc/1/root/etc/shadow $1",
    "link to itself": "ln -s ${1##*/} $1",
}


def plant(suspect: Suspect, kind: str) -> list[str]:
    """Put such files everywhere in a container, and return their directories."""
    assert suspect.container is not None
    identity = suspect.container.id
    bundles = [f"{above}/{identity}" for above in _BUNDLES]
    directories = [*_DIRECTORIES, *bundles]
    names = ("config.json", "state.json", "init.pid", "config.v2.json", "status")
    files = [*_FILES, *(f"{bundle}/{name}" for bundle in bundles for name in names)]
    made = "".join(f"make {path};" for path in files)
    suspect.sh(f"mkdir -p {' '.join(directories)}; make() {{ {KINDS[kind]}; }}; {made}")
    suspect.sh("mount --bind /fake/devices /proc/devices || true; mount --bind /fake/driver /proc/driver || true")
    return directories


def test_files_below_a_containers_root(arena: Arena) -> None:
    """The toolkit's configuration, bundles, Docker's files, a ledger, a driver: as text, pipes, links, without end."""
    suspects = {kind: arena.enter(ADMIN, () if "link" in kind else (GPU0,)) for kind in KINDS}
    paths = []
    for kind, suspect in suspects.items():
        assert suspect.container is not None
        root = arena.node.path(f"/proc/{suspect.container.pid}/root")
        paths += [root / path[1:] for path in plant(suspect, kind)]
    with Bait(paths) as bait:
        (paths[0] / "config.toml").read_bytes()
        until(bait.taken, 20, "the bait to work")
        arena.withstand(*suspects.values())
        for suspect in suspects.values():
            arena.guard.run("explain", suspect.scope)
        arena.guard.run("doctor")
        assert bait.taken() == []


def test_a_root_that_leads_elsewhere(arena: Arena) -> None:
    """A first process that has changed its root, its working directory and its whole /proc, or has none."""
    suspects = [
        arena.enter(ADMIN, init='mkdir -p /new/bin; cp /bin/busybox /new/bin/sleep; cd /new; exec chroot /new "$@"'),
        arena.enter(ADMIN, init="mount -t tmpfs none /proc; mkdir -p /proc/1 /proc/self; echo 0::/ >/proc/1/cgroup"),
        arena.enter(ADMIN, init="umount -l /proc; umount -l /sys; umount -l /dev/pts; cd /; "),
    ]
    arena.withstand(*suspects)
