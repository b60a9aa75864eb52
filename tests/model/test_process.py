"""What a process is to gpuguard."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.process import Process, Role
from gpuguard.model.scope_name import ContainerScope

ID = "0123456789abcdef" * 4


def process(exe: str = "/usr/bin/bash", group: str = "/system.slice/ssh.service", *, native: bool = True) -> Process:
    """Return a process of the host."""
    return Process(4711, "comm", exe=exe, control_group=group, native=native)


class TestProgram:
    """The name of the program."""

    @pytest.mark.parametrize(
        ("exe", "program"),
        [
            ("/usr/bin/systemctl", "systemctl"),
            ("/usr/bin/systemctl (deleted)", "systemctl"),
            ("/opt/odd dir/odd (name)", "odd (name)"),
            ("/memfd:crun_cloned:/proc/self/exe (deleted)", "crun"),
            ("/memfd:runc_cloned:/proc/self/exe (deleted)", "runc"),
            ("/memfd:tool (deleted)", "memfd:tool"),
            ("/memfd:_cloned:", "comm"),
            ("/runc", "runc"),
            ("/", "comm"),
            ("", "comm"),
        ],
    )
    def test_of_an_executable(self, exe: str, program: str) -> None:
        """It is the executable's, also of one that was replaced or that runs from a copy; else the kernel's."""
        assert process(exe).program == program


class TestUnit:
    """The unit and the container that it runs in."""

    @pytest.mark.parametrize(
        ("group", "unit"),
        [
            ("/system.slice/ssh.service", "ssh.service"),
            ("/user.slice/user-0.slice/session-3.scope", "session-3.scope"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", "user@1000.service"),
            ("/init.scope", "init.scope"),
            (f"/system.slice/docker-{ID}.scope/init.scope", f"docker-{ID}.scope"),
            ("/system.slice", None),
            ("/docker/deadbeef/ssh.service", None),
            ("/", None),
            ("", None),
        ],
    )
    def test_unit(self, group: str, unit: str) -> None:
        """It is the first below the slices: a control group that a unit has made below its own says nothing."""
        assert process(group=group).unit == unit

    def test_container(self) -> None:
        """A container is known by its scope, also from a control group below that."""
        found = process(group=f"/machine.slice/libpod-{ID}.scope/container").container
        assert found == ContainerScope("podman", ID)

    def test_no_container(self) -> None:
        """A service is none."""
        assert process().container is None


class TestRole:
    """The part it plays."""

    @pytest.mark.parametrize("program", ["runc", "crun", "nvidia-container-cli", "containerd-shim-runc-v2", "dockerd"])
    def test_a_runtime(self, program: str) -> None:
        """A runtime is one by its executable."""
        assert process(f"/usr/sbin/{program}").role is Role.RUNTIME

    @pytest.mark.parametrize(
        "program", ["nvidia-container-cli.real", "nvidia-container-runtime.cdi", "buildkit-runc", "runc.amd64"]
    )
    def test_a_runtime_by_another_name(self, program: str) -> None:
        """What the GPU operator and others call theirs: what such a one takes away from a list nobody has meant."""
        assert process(f"/usr/local/nvidia/toolkit/{program}").role is Role.RUNTIME

    def test_a_runtime_from_a_copy_of_itself(self) -> None:
        """It is that runtime still."""
        assert process("/memfd:crun_cloned:/proc/self/exe (deleted)").role is Role.RUNTIME

    @pytest.mark.parametrize("scope", [f"libpod-conmon-{ID}.scope", f"crio-conmon-{ID}.scope"])
    @pytest.mark.parametrize("slices", ["/machine.slice", "/kubepods.slice/kubepods-pod1.slice"])
    def test_a_runtime_below_conmon(self, slices: str, scope: str) -> None:
        """What conmon starts on the host runs in its scope, among those of the containers."""
        assert process("/usr/bin/runc", f"{slices}/{scope}").role is Role.RUNTIME

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("name", ["runc", "systemd", "containerd-shim", "bash"])
    def test_a_name_alone(self, name: str) -> None:
        """Any process may call itself anything."""
        assert Process(4711, name, native=True).role is Role.UNKNOWN

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize("exe", ["/usr/bin/runc", "/usr/bin/bash", "/usr/lib/systemd/systemd"])
    def test_of_another_namespace(self, exe: str) -> None:
        """An executable in namespaces other than the host's may be any file: it is nobody's."""
        assert process(exe, "/", native=False).role is Role.UNKNOWN

    @pytest.mark.invariant(1)
    @pytest.mark.parametrize(
        "group",
        [
            f"/system.slice/docker-{ID}.scope",
            f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{ID}.scope/libpod-conmon-{ID}.scope",
            f"/docker/{ID}",
            f"/kubepods/burstable/pod1/{ID}/libpod-conmon-{ID}.scope",
            "/machine.slice/machine-guest.scope",
            f"/system.slice/job.service/libpod-payload-{ID}",
            "/lxc.payload.guest/system.slice/ssh.service",
            "/lxc/guest",
        ],
    )
    @pytest.mark.parametrize("exe", ["/usr/bin/runc", "/usr/bin/bash"])
    def test_in_a_container(self, exe: str, group: str) -> None:
        """Whatever its program is named, and whatever it has named the control groups below its own."""
        assert process(exe, group).role is Role.CONTAINER

    def test_systemd(self) -> None:
        """PID 1 is systemd."""
        assert Process(1, "systemd").role is Role.SYSTEMD

    def test_a_user_manager(self) -> None:
        """A user's systemd is a program as any other."""
        assert process("/usr/lib/systemd/systemd", "/user.slice/user@1000.service/init.scope").role is Role.HOST

    @given(st.builds(Process, st.integers(2), st.text(), exe=st.text(), control_group=st.text(), native=st.booleans()))
    def test_any(self, found: Process) -> None:
        """Every process has a role and a name; only what is native and has an executable acts for the host."""
        assert found.program or not found.name
        assert found.role is not Role.SYSTEMD
        if found.role in {Role.HOST, Role.RUNTIME}:
            assert found.native
            assert found.exe
