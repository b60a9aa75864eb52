"""Which mounts are the hook's, and when that can be told.

The lines have the form of proc_pid_mountinfo(5), and are such as Docker's containers have; names were made up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.majors import DeviceNumber
from gpuguard.model.mounts import ContainerInit, HostDev, MountPoint, corroborated, parse_mountinfo
from gpuguard.model.oci_spec import Mount, OciSpec
from gpuguard.model.rule import CHAR

DOCKER = """\
719 554 0:52 / / rw,relatime master:238 - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/d/diff,workdir=/d/work
720 719 0:55 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
721 719 0:56 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
722 721 0:57 / /dev/pts rw,nosuid,noexec,relatime - devpts devpts rw,gid=5,mode=620,ptmxmode=666
723 719 0:58 / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro
729 719 254:1 /var/lib/docker/containers/1/hosts /etc/hosts rw,relatime - ext4 /dev/vda1 rw
740 720 0:55 /bus /proc/bus ro,nosuid,nodev,noexec,relatime - proc proc rw
741 720 0:56 /null /proc/kcore rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
"""
HOOKS = """\
750 721 0:5 /nvidiactl /dev/nvidiactl ro,nosuid,noexec,relatime master:2 - devtmpfs udev rw,size=8k,mode=755
751 721 0:5 /nvidia0 /dev/nvidia0 ro,nosuid,noexec,relatime master:2 - devtmpfs udev rw,size=8k,mode=755
752 721 0:5 /nvidia-caps/nvidia-cap3 /dev/nvidia-caps/nvidia-cap3 ro,nosuid,noexec - devtmpfs udev rw
"""
DEV = HostDev("0:5")
GPU0, GPU1, CONTROL = (DeviceNumber(CHAR, 195, minor) for minor in (0, 1, 255))
CAP3 = DeviceNumber(CHAR, 511, 3)
NODES = {"/dev/nvidia0": GPU0, "/dev/nvidia1": GPU1, "/dev/nvidiactl": CONTROL, "/dev/nvidia-caps/nvidia-cap3": CAP3}
SPEC = OciSpec(
    capabilities=frozenset({"CAP_MKNOD", "CAP_SYS_CHROOT"}),
    namespaces=frozenset({"mount", "pid", "network"}),
    mounts=(
        Mount("/proc", "proc", "proc"),
        Mount("/dev", "tmpfs", "tmpfs"),
        Mount("/dev/pts", "devpts", "devpts"),
        Mount("/sys", "sysfs", "sysfs"),
        Mount("/etc/hosts", "/var/lib/docker/containers/1/hosts", "bind"),
    ),
)


def line(path: str, root: str, device: str = "0:5", flags: str = "ro,nosuid,noexec,relatime") -> str:
    """Return a line of mountinfo."""
    return f"800 721 {device} {root} {path} {flags} - devtmpfs udev rw\n"


def seen(more: str, spec: OciSpec = SPEC, dev: HostDev = DEV, text: str = DOCKER) -> object:
    """Return what mounts prove."""
    return corroborated(ContainerInit(text + more), spec, dev, NODES)


def with_mounts(*mounts: Mount) -> OciSpec:
    """Return a specification with more mounts."""
    return replace(SPEC, mounts=(*SPEC.mounts, *mounts))


class TestHooks:
    """Mounts as the hook makes them."""

    def test_they_prove_its_devices(self) -> None:
        """The host's node at its own path, for each of them."""
        assert seen(HOOKS) == {CONTROL, GPU0, CAP3}

    def test_none_proves_that_there_are_none(self) -> None:
        """A container without such mounts was given nothing by the hook."""
        assert seen("") == frozenset()

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "other",
        [
            line("/dev/nvidia0", "/nvidia1"),
            line("/dev/gpu", "/nvidia1"),
            line("/x/dev/nvidia1", "/nvidia1"),
            line("/dev/nvidia1", "/nvidia1", device="0:6"),
            line("/dev/nvidia1", "/nvidia1//deleted"),
            line("/dev/nvidia1", "/nvidia1", flags="rw,nosuid,noexec"),
            line("/dev/nvidia1", "/nvidia1", flags="ro,relatime"),
            line("/dev/nvidia7", "/nvidia7"),
        ],
    )
    def test_others_do_not(self, other: str) -> None:
        """Another node, another place, another file system, a node that is gone, other flags: not the hook's."""
        assert seen(HOOKS + other) == {CONTROL, GPU0, CAP3}

    def test_a_dev_that_is_not_a_mount_of_its_own(self) -> None:
        """The host's /dev may be a directory of a file system."""
        under = HOOKS.replace(" 0:5 /", " 0:5 /srv/dev/")
        assert seen(under, dev=HostDev("0:5", "/srv/dev")) == {CONTROL, GPU0, CAP3}
        assert seen(HOOKS, dev=HostDev("0:5", "/srv/dev")) == frozenset()


class TestSpec:
    """What the container's user has asked for."""

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "destination", ["/dev/nvidia1", "/dev//nvidia1", "/dev/./x/../nvidia1", "//dev/nvidia1", "/dev/nvidia1/"]
    )
    def test_a_bind_mount_of_the_node(self, destination: str) -> None:
        """`-v /dev/nvidia1:/dev/nvidia1:ro,nosuid,noexec` is no proof, however it is spelt."""
        spec = with_mounts(Mount(destination, "/dev/nvidia1", "bind"))
        assert seen(HOOKS + line("/dev/nvidia1", "/nvidia1"), spec) == {CONTROL, GPU0, CAP3}

    @pytest.mark.invariant(1)
    def test_by_a_path_from_the_bundle(self) -> None:
        """Runtimes take a bind mount's source without a slash from the bundle on: it may lead anywhere."""
        spec = with_mounts(Mount("/dev/nvidia1", "../../dev/nvidia1", "bind"))
        assert seen(HOOKS + line("/dev/nvidia1", "/nvidia1"), spec) == {CONTROL, GPU0, CAP3}

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("kind", ["bind", "none", "", "ext4", "tmpfs"])
    def test_below_a_bind_mount(self, kind: str) -> None:
        """What lies in a directory that was mounted may have come with it."""
        spec = with_mounts(Mount("/dev/nvidia-caps", "/srv/caps", kind))
        assert seen(HOOKS + line("/dev/nvidia-caps", "/", device="254:1"), spec) == {CONTROL, GPU0}

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("source", ["/", "/dev", "/dev/", "//dev", "/dev/../", "/dev/nvidia-caps"])
    def test_the_hosts_nodes_in_the_container(self, source: str) -> None:
        """Where it has them all in a directory it proves nothing."""
        spec = with_mounts(Mount("/host", source, "bind"))
        assert seen(HOOKS + line("/host", "/srv", device="254:1"), spec) is None

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("root", ["/", "/nvidia-caps"])
    def test_in_fact(self, root: str) -> None:
        """A link on the host may have led the mount to /dev: that is seen in what is mounted."""
        spec = with_mounts(Mount("/host", "/srv/link", "bind"))
        assert seen(HOOKS + line("/host", root), spec) is None
        assert seen(HOOKS + line("/host", "/srv"), spec, HostDev("0:5", "/srv/dev")) is None

    @pytest.mark.invariant(1)
    def test_a_link_in_the_image(self) -> None:
        """`-v /dev/nvidia1:/x/nvidia1` with a link from /x to /dev is mounted elsewhere than the specification says."""
        spec = with_mounts(Mount("/x/nvidia1", "/dev/nvidia1", "bind"))
        assert seen(HOOKS + line("/dev/nvidia1", "/nvidia1"), spec) is None

    def test_the_link_that_images_have(self) -> None:
        """/var/run is /run nearly everywhere; what is mounted there may be found there."""
        spec = with_mounts(Mount("/var/run/nvidia-container-devices/0", "/dev/null", "bind"))
        assert seen(HOOKS + line("/run/nvidia-container-devices/0", "/null"), spec) == {CONTROL, GPU0, CAP3}
        there = with_mounts(Mount("/var/run/x", "/srv", "bind"))
        assert seen(HOOKS + line("/var/run/x", "/srv", device="254:1"), there) == {CONTROL, GPU0, CAP3}

    @pytest.mark.invariant(1)
    def test_what_the_hook_mounts_there_does_not_stand_in_for_another(self) -> None:
        """`-v /srv/link:/var/run/nvidia-persistenced/socket`, which is a link to /dev/nvidia1 in the image."""
        persistenced = line("/run/nvidia-persistenced/socket", "/nvidia-persistenced/socket", device="0:22")
        for source in ("/dev/nvidia1", "/srv/link"):
            spec = with_mounts(Mount("/var/run/nvidia-persistenced/socket", source, "bind"))
            assert seen(HOOKS + persistenced + line("/dev/nvidia1", "/nvidia1"), spec) is None

    @pytest.mark.invariant(1)
    def test_what_the_specification_mounts_somewhere(self) -> None:
        """The node that is the source of one of its mounts, wherever that ends."""
        spec = with_mounts(Mount("/x", "/dev//nvidia1", "bind"))
        mounted = line("/x", "/nvidia1") + line("/dev/nvidia1", "/nvidia1")
        assert seen(HOOKS + mounted, spec) == {CONTROL, GPU0, CAP3}

    @pytest.mark.invariant(1)
    def test_two_at_one_place(self) -> None:
        """One that is found does not stand for another."""
        twice = with_mounts(Mount("/etc/hosts", "/dev/nvidia1", "bind"))
        assert seen(HOOKS + line("/dev/nvidia1", "/nvidia1"), twice) is None

    @pytest.mark.invariant(1)
    def test_another_root(self) -> None:
        """A process that has called chroot(2) sees some of the mounts, under other names."""
        spec = with_mounts(Mount("/x/dev/nvidia1", "/dev/nvidia1", "bind"))
        inside = line("/dev/nvidia1", "/nvidia1")
        assert seen(inside, spec, text="") is None
        assert seen(inside, spec, text=DOCKER) is None
        whole = "".join(one for one in DOCKER.splitlines(keepends=True) if " / / " not in one)
        assert seen(HOOKS, text=whole) is None


class TestProcess:
    """Who the first process is, and what it may do."""

    def proof(self, init: ContainerInit, spec: OciSpec = SPEC) -> object:
        """Return what the hook's mounts prove of it."""
        return corroborated(init, spec, DEV, NODES)

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("capabilities", [None, frozenset({"CAP_SYS_ADMIN"})])
    def test_one_that_may_mount(self, capabilities: frozenset[str] | None) -> None:
        """With CAP_SYS_ADMIN in the specification it can mount what it likes."""
        assert seen(HOOKS, replace(SPEC, capabilities=capabilities)) is None

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "init",
        [
            ContainerInit(DOCKER + HOOKS, user_depth=1),
            ContainerInit(DOCKER + HOOKS, user_depth=None),
            ContainerInit(DOCKER + HOOKS, owns_mounts=False),
            ContainerInit(DOCKER + HOOKS, shares_mounts=True),
        ],
    )
    def test_namespaces_of_its_own_making(self, init: ContainerInit) -> None:
        """In a user namespace that the specification does not have, or mounts of another, or the host's."""
        assert self.proof(init) is None

    def test_a_user_namespace_by_the_runtime(self) -> None:
        """It is the first below the host's, and the mounts are its own."""
        spec = replace(SPEC, namespaces=SPEC.namespaces | {"user"})
        assert self.proof(ContainerInit(DOCKER + HOOKS, user_depth=1), spec) == {CONTROL, GPU0, CAP3}
        for depth in (0, None):
            assert self.proof(ContainerInit(DOCKER + HOOKS, user_depth=depth), spec) is None

    @pytest.mark.invariant(1)
    def test_without_mounts_of_its_own(self) -> None:
        """A container in the host's mount namespace, or in one that it joined."""
        assert seen(HOOKS, replace(SPEC, namespaces=frozenset({"pid"}))) is None


@pytest.mark.invariant(10)
def test_mounts_by_the_thousand() -> None:
    """A user may ask for any number of them: each is compared with as many in no time."""
    many = [f"/m/{number}" for number in range(20000)]
    spec = with_mounts(*(Mount(path, path, "bind") for path in many))
    lines = "".join(line(path, path, "8:1") for path in many) + line("/dev/nvidia0", "/nvidia0") * 5000
    before = time.process_time()
    assert seen(lines, spec) == {GPU0}
    assert time.process_time() - before < 3.0


class TestText:
    """The form of mountinfo."""

    def test_fields(self) -> None:
        """Optional fields or none; characters that would end a field are written as octal numbers."""
        text = "1 2 0:5 /a\\040b /c\\134\\011 rw,ro shared:1 master:2 - tmpfs none rw\n3 4 0:6 / / rw - x y z\n"
        assert parse_mountinfo(text) == (
            MountPoint("0:5", "/a b", "/c\\\t", frozenset({"rw", "ro"})),
            MountPoint("0:6", "/", "/", frozenset({"rw"})),
        )

    @pytest.mark.parametrize("letter", ["\f", "\v", "\x1c", "\x85", "\u2028", "\r"])
    def test_only_a_newline_ends_a_line(self, letter: str) -> None:
        """The kernel writes other characters of a path as they are."""
        assert parse_mountinfo(f"1 2 0:5 / /a{letter}b rw - x y z\n") == (
            MountPoint("0:5", "/", f"/a{letter}b", frozenset({"rw"})),
        )

    @pytest.mark.parametrize("text", ["1 2 0:5 / /\n", "1 2 0:5 / / rw tmpfs\n", DOCKER + "x\n"])
    def test_what_is_not_one(self, text: str) -> None:
        """Nothing is made of half a text."""
        assert parse_mountinfo(text) is None
        assert seen("", text=text) is None


_PATHS = st.sampled_from(["/", "/dev", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-caps", "/x", "/x/nvidia1", "/etc"])
_ROOTS = st.sampled_from(["/", "/nvidia0", "/nvidia1", "/nvidia-caps", "/x"])


@pytest.mark.invariant(1)
@given(
    spec_mounts=st.lists(st.builds(Mount, _PATHS, _PATHS, st.sampled_from(["bind", "tmpfs"])), max_size=3),
    lines=st.lists(st.builds(line, _PATHS, _ROOTS, st.sampled_from(["0:5", "0:6"])), max_size=5),
)
def test_nothing_but_nodes_at_their_own_place(spec_mounts: list[Mount], lines: list[str]) -> None:
    """Whatever is mounted: what counts is one of the nodes, from the host's /dev, not put there by a bind mount."""
    spec = with_mounts(*spec_mounts)
    nodes: Mapping[str, DeviceNumber] = NODES
    found = corroborated(ContainerInit(DOCKER + "".join(lines)), spec, DEV, nodes)
    binds = [mount for mount in spec_mounts if mount.source.startswith("/")]
    for number in found or ():
        path = next(path for path, known in nodes.items() if known == number)
        assert any(f" 0:5 {path[len('/dev') :]} {path} " in one for one in lines)
        assert not any(path == mount.destination or mount.destination in {"/", "/dev"} for mount in binds)
