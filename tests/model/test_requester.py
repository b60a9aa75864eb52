"""Whom something was done for, as people read it."""

from __future__ import annotations

import shlex
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuguard.model.process import Process
from gpuguard.model.requester import chain, text

ID = "0123456789abcdef" * 4
SESSION = "/user.slice/user-0.slice/session-3.scope"


def process(line: str, group: str = "", exe: str = "") -> Process:
    """Return a process by its command line; its executable is the first word of that unless told."""
    command = tuple(shlex.split(line))
    exe = exe or f"/usr/bin/{PurePosixPath(command[0]).name.removeprefix('-')}"
    return Process(4711, PurePosixPath(exe).name[:15], exe, command, group, native=True)


def told(*lines: str, group: str = "") -> str:
    """Return the chain of programs with these command lines, nearest first, all in one control group."""
    return text(chain([process(line, group) for line in lines]))


APT = "/system.slice/apt-daily-upgrade.service"
SCRIPT = "/var/lib/dpkg/info/telegraf.postinst configure 1.0"


class TestPackages:
    """Packages' scripts."""

    def test_a_postinst(self) -> None:
        """The package is named, and what upgraded it; dpkg itself says nothing more."""
        assert (
            told(
                "systemctl --system daemon-reload",
                f"/bin/sh {SCRIPT}",
                "/usr/bin/dpkg --status-fd 9 --configure --pending",
                "/usr/bin/python3 /usr/bin/unattended-upgrade",
                "/bin/sh /usr/lib/apt/apt.systemd.daily install",
                group=APT,
            )
            == "systemctl daemon-reload ← dpkg postinst of telegraf ← unattended-upgrade ← apt.systemd.daily"
            " ← apt-daily-upgrade.service"
        )

    @pytest.mark.parametrize(
        "script",
        [
            f"/bin/sh {SCRIPT}",
            f"/bin/sh -e {SCRIPT}",
            f"/bin/bash -o pipefail -- {SCRIPT}",
            f"/usr/bin/perl -w {SCRIPT}",
            "/var/lib/dpkg/info/telegraf:amd64.postinst configure",
        ],
    )
    def test_in_any_language(self, script: str) -> None:
        """A package's script may be a program in any language, also a binary."""
        assert told("systemctl daemon-reload", script, "dpkg -i x.deb", "apt-get install x") == (
            "systemctl daemon-reload ← dpkg postinst of telegraf ← apt-get"
        )

    def test_with_debconf(self) -> None:
        """What debconf puts between is left out."""
        frontend = f"/usr/bin/perl -w /usr/share/debconf/frontend {SCRIPT}"
        assert told("systemctl daemon-reload", f"/bin/sh {SCRIPT}", frontend, "dpkg --configure -a") == (
            "systemctl daemon-reload ← dpkg postinst of telegraf"
        )

    def test_with_debian_helpers(self) -> None:
        """What the script's helpers are named is of no interest."""
        helper = "/usr/bin/perl /usr/bin/deb-systemd-invoke start x.service"
        assert told("systemctl daemon-reload", helper, "/bin/sh /usr/sbin/invoke-rc.d x start", f"sh {SCRIPT}") == (
            "systemctl daemon-reload ← dpkg postinst of telegraf"
        )

    def test_of_a_package_that_is_unpacked(self) -> None:
        """Its script has no package's name yet."""
        assert told("systemctl daemon-reload", "/bin/sh /var/lib/dpkg/tmp.ci/preinst install", "dpkg -i x.deb") == (
            "systemctl daemon-reload ← dpkg preinst"
        )

    def test_of_rpm(self) -> None:
        """A scriptlet does not tell its package."""
        assert told(
            "systemctl daemon-reload",
            "/bin/sh /usr/lib/systemd/systemd-update-helper system-reload",
            "/bin/sh /var/tmp/rpm-tmp.a1B2c3 1",
            "/usr/bin/rpm -U x.rpm",
            "/usr/libexec/platform-python /usr/bin/dnf -y upgrade",
        ) == ("systemctl daemon-reload ← rpm scriptlet ← dnf")


class TestPrograms:
    """How one process is named."""

    @pytest.mark.parametrize(
        ("line", "name"),
        [
            ("-bash", "bash"),
            ("bash -c 'systemctl daemon-reload --password=secret'", "bash"),
            ("bash -ec 'x' y", "bash"),
            ("sh -s arg", "sh"),
            ("sh -", "sh"),
            ("bash --rcfile x /opt/deploy.sh secret", "deploy.sh"),
            ("bash -o", "bash"),
            ("sh -ex /root/tool.sh", "tool.sh"),
            ("bash --", "bash"),
            ("python3 -c 'import x' y", "python3"),
            ("python3 -Ic x", "python3"),
            ("python3 -m ansible.cli secret", "ansible.cli"),
            ("python3 -m", "python3"),
            ("python3.11 -u -W error /root/tool.py --token=secret", "tool.py"),
            ("perl -we 'x' y", "perl"),
            ("ruby /usr/bin/puppet agent", "puppet"),
            ("node /srv/app/", "app"),
            ("sh /", "/"),
            ("sudo systemctl daemon-reload", "sudo"),
            ("su -", "su"),
            ("env SECRET=1 x", "env"),
            ("systemctl set-property x.scope CPUWeight=200 A=", "systemctl set-property x.scope CPUWeight A"),
            (f"systemctl set-property docker-{ID}.scope A=1", "systemctl set-property docker-0123456789ab….scope A"),
            ("systemctl enable --now x", "systemctl enable"),
            ("systemctl start x", "systemctl"),
            ("runc --root /run/docker/runtime-runc/moby --log /x update --resources - 0123", "runc update"),
            ("runc --version", "runc"),
            ("podman update --cpu-shares 5 trainer", "podman update"),
            ("nvidia-container-cli --load-kmods configure --ldconfig=/x", "nvidia-container-cli configure"),
            ("dockerd --exec-opt update", "dockerd"),
            ("busctl call org.freedesktop.systemd1 / org.freedesktop.systemd1.Manager Reload", "busctl Reload"),
        ],
    )  # fmt: skip
    def test_name(self, line: str, name: str) -> None:
        """A script counts, not its interpreter; nothing is told of a command line that might be secret."""
        assert told(line) == name

    def test_of_an_interpreter_whose_command_line_is_not_known(self) -> None:
        """The kernel names a process after its script."""
        assert chain([Process(7, "tool.py", "/usr/bin/python3.11")]) == ("tool.py",)

    def test_of_one_that_is_hardly_known(self) -> None:
        """The kernel's name is all there is."""
        assert chain([Process(7, "odd")]) == ("odd",)
        assert chain([Process(7, "")]) == ("",)


class TestPlace:
    """The end of a chain."""

    @pytest.mark.parametrize(
        ("group", "end"),
        [
            (SESSION, "session-3.scope"),
            ("/system.slice/cron.service", "cron.service"),
            (f"/system.slice/docker-{ID}.scope", "docker container 0123456789ab"),
            (f"/docker/{ID}", "a container"),
        ],
    )
    def test_of_the_nearest(self, group: str, end: str) -> None:
        """It is where the nearest process runs: a session's login daemon is a service."""
        line = [
            process("systemctl daemon-reload", group),
            process("sshd", group),
            process("sshd", "/system.slice/ssh.service"),
        ]
        assert text(chain(line)) == f"systemctl daemon-reload ← sshd ← {end}"

    def test_a_runtime(self) -> None:
        """A container's update is a child of its shim, which is a child of PID 1."""
        assert told(
            "runc --root /run/x update --resources - 0123",
            "/usr/bin/containerd-shim-runc-v2 -namespace moby -id 0123 -address /run/x.sock",
            group="/system.slice/docker.service",
        ) == ("runc update ← containerd-shim-runc-v2 ← docker.service")


class TestBounds:
    """However long and odd it is."""

    def test_nobody(self) -> None:
        """Of nobody nothing is told."""
        assert chain(()) == ()
        assert text(()) == ""

    def test_only_helpers(self) -> None:
        """A helper is named where there is nothing else."""
        assert told("/usr/bin/perl /usr/bin/deb-systemd-invoke start x") == "deb-systemd-invoke"

    def test_one_after_itself(self) -> None:
        """A name is told once."""
        assert told("bash", "bash", "sudo x", "bash", group=SESSION) == "bash ← sudo ← bash ← session-3.scope"

    @pytest.mark.invariant(10)
    def test_many(self) -> None:
        """The nearest, the outermost and the place stay."""
        lines = [f"program-{number}" for number in range(12)]
        assert told(*lines) == "program-0 ← program-1 ← program-2 ← program-3 ← program-4 ← program-5 ← … ← program-11"
        assert told(*lines, group=SESSION).endswith("program-4 ← … ← program-11 ← session-3.scope")

    def test_an_odd_name(self) -> None:
        """What cannot be printed, and what looks like the next of the chain, is replaced."""
        assert chain([process("x", exe="/a\n\udcff\u202e ← b")]) == ("a\ufffd\ufffd\ufffd \ufffd b",)
        assert chain([process("x", exe="/" + "x" * 200)]) == ("x" * 95 + "…",)

    @pytest.mark.invariant(10)
    @given(
        st.lists(
            st.builds(
                Process,
                st.integers(1),
                st.text(),
                st.text() | st.sampled_from(["/bin/sh", "/usr/bin/python3", "/usr/bin/dpkg", "/usr/bin/runc"]),
                st.lists(
                    st.text()
                    | st.sampled_from(["sh", "-c", "--", "-m", "-o", "/debconf/frontend", "/dpkg/info/x.postinst"])
                ).map(tuple),
                st.text() | st.just(SESSION),
            ),
            max_size=20,
        )
    )
    def test_any(self, line: list[Process]) -> None:
        """No process is an error; a chain is short and can be printed."""
        names = chain(line)
        assert bool(names) == bool(line)
        assert len(names) <= 8
        assert all(len(name) <= 96 and (name.isprintable()) and "←" not in name for name in names)
