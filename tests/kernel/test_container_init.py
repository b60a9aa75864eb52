"""Mounts and namespaces of real processes that stand for a container's first one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from gpuguard.kernel import container_init
from gpuguard.kernel.container_init import ContainerInits
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.mounts import HostDev, corroborated
from gpuguard.model.oci_spec import Mount, OciSpec
from gpuguard.model.rule import CHAR
from tests.kernel import inside

PROC, DEV = Path("/proc"), Path("/dev")
# It stands for a GPU's node: opening it would harm nobody.
NODE, NUMBER = "/dev/full", DeviceNumber(CHAR, 1, 7)
NODES = {NODE: NUMBER, "/dev/nvidia0": DeviceNumber(CHAR, 195, 0)}
SPEC = OciSpec(
    capabilities=frozenset({"CAP_MKNOD"}),
    namespaces=frozenset({"mount", "pid"}),
    mounts=(Mount("/dev", "tmpfs", "tmpfs"),),
)
USER_SPEC = replace(SPEC, namespaces=SPEC.namespaces | {"user"})
LOOK = ContainerInits(PROC, DEV)

Start = Callable[..., int]


def own_group() -> str:
    """Return the control group of this process."""
    line = Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()[0]
    return line.split(":", 2)[2]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start processes that take steps; their numbers are returned when they have."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    with ExitStack() as running:

        def started(*steps: str) -> int:
            command = [sys.executable, inside.__file__, str(tmp_path), NODE, *steps]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            running.callback(process.communicate)
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            return process.pid

        yield started


def proved(pid: int, spec: OciSpec = SPEC) -> object:
    """Return what a process's mounts prove."""
    init, dev = LOOK.look(pid, own_group()), LOOK.host_dev()
    assert init is not None
    assert dev is not None
    return corroborated(init, spec, dev, NODES)


class TestProof:
    """What mounts prove, with the kernel's own words."""

    def test_the_hooks_mount(self, start: Start) -> None:
        """In the mount namespace that the runtime made."""
        assert proved(start("mounts", "directory", "hook", "enter")) == {NUMBER}

    def test_none(self, start: Start) -> None:
        """A container that the hook gave nothing."""
        assert proved(start("mounts", "directory", "enter")) == frozenset()

    @pytest.mark.invariant(1)
    def test_a_bind_mount_of_its_users(self, start: Start) -> None:
        """It looks the same, and is in the specification."""
        spec = replace(SPEC, mounts=(*SPEC.mounts, Mount(NODE, NODE, "bind")))
        assert proved(start("mounts", "directory", "hook", "enter"), spec) == frozenset()

    @pytest.mark.invariant(1)
    def test_a_user_namespace_of_its_own(self, start: Start) -> None:
        """Where it can mount what it sees, and then give up the right to."""
        pid = start("mounts", "directory", "expose", "enter", "own-user", "own-mount")
        init = LOOK.look(pid, own_group())
        assert init is not None
        assert f" {NODE[len('/dev') :]} {NODE} " in init.mountinfo
        assert init.user_depth == 1
        assert proved(pid) is None
        assert proved(pid, USER_SPEC) is None

    @pytest.mark.invariant(1)
    def test_the_hosts_dev_in_sight(self, start: Start) -> None:
        """Even before it has done anything with it."""
        assert proved(start("mounts", "directory", "hook", "expose", "enter")) is None

    def test_a_user_namespace_of_the_runtimes(self, start: Start) -> None:
        """One below the host's is what the specification says; the mounts are its own."""
        pid = start("user", "directory", "hook", "enter")
        assert proved(pid, USER_SPEC) == {NUMBER}
        assert proved(pid) is None

    @pytest.mark.invariant(1)
    def test_one_in_one(self, start: Start) -> None:
        """A second user namespace within is of its own making."""
        pid = start("user", "directory", "hook", "enter", "own-user")
        init = LOOK.look(pid, own_group())
        assert init is not None
        assert init.user_depth is None
        assert proved(pid, USER_SPEC) is None

    @pytest.mark.invariant(1)
    def test_the_hosts_mounts(self, start: Start) -> None:
        """A process that has no mount namespace of its own."""
        init = LOOK.look(start(), own_group())
        assert init is not None
        assert init.shares_mounts

    @pytest.mark.invariant(1)
    def test_the_hosts_mounts_are_its_first_processes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where gpuguard's service has mounts of its own, whoever shares the host's does not share these."""
        inits = ContainerInits(PROC, DEV)
        genuine = inits._of
        hosts = {"1": genuine("self", "mnt"), "self": (0, 0)}
        monkeypatch.setattr(
            inits, "_of", lambda process, kind: hosts[process] if kind == "mnt" else genuine(process, kind)
        )
        init = inits.look(os.getpid(), own_group())
        assert init is not None
        assert init.shares_mounts


class TestLook:
    """Which process is looked at."""

    def test_in_its_control_group_only(self, start: Start) -> None:
        """Another's number is not believed; a group below is."""
        pid = start()
        assert LOOK.look(pid, "/no/such.scope") is None
        assert LOOK.look(pid, own_group()[:-1] or "/x") is None
        assert LOOK.look(pid, "/") is not None

    def test_gone(self) -> None:
        """One that has ended, or never was."""
        with subprocess.Popen(["true"]) as ended:
            ended.wait()
        for pid in (ended.pid, 0, -1, 1 << 40):
            assert LOOK.look(pid, "/") is None

    @pytest.mark.invariant(1)
    def test_one_that_moves_meanwhile(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was read may be of either mount namespace: nothing is seen."""
        genuine = container_init._link
        assert LOOK.look(os.getpid(), own_group()) is not None
        monkeypatch.setattr(container_init, "_link", lambda name, at: (0, 0) if name == "ns/mnt" else genuine(name, at))
        assert LOOK.look(os.getpid(), own_group()) is None


class TestHostDev:
    """How mountinfo names the host's /dev."""

    def test_real(self) -> None:
        """By its file system's number."""
        number = DEV.stat().st_dev
        assert LOOK.host_dev() == HostDev(f"{os.major(number)}:{os.minor(number)}", "")

    def test_below_a_mount(self) -> None:
        """A directory of a file system has its path in it."""
        with TemporaryDirectory(dir="/dev/shm") as made:
            found = ContainerInits(PROC, Path(made)).host_dev()
        assert found is not None
        assert found.prefix == f"/{Path(made).name}"

    def test_another_file_system_than_it_says(self, tmp_path: Path) -> None:
        """Then no mount can be told to be from there."""
        mountinfo = tmp_path / "self/mountinfo"
        mountinfo.parent.mkdir()
        mountinfo.write_text("36 35 98:76 / / rw - ext4 x rw\n", encoding="ascii")
        assert ContainerInits(tmp_path, DEV).host_dev() is None

    def test_not_there(self, tmp_path: Path) -> None:
        """Then nothing can be compared with it."""
        assert ContainerInits(PROC, tmp_path / "dev").host_dev() is None
        assert ContainerInits(tmp_path, DEV).host_dev() is None
