"""The units that systemd starts gpuguard by."""

from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parent.parent / "systemd"


def settings(unit: str) -> configparser.ConfigParser:
    """Return a unit file's settings; of a key that is there more than once, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's keys have capitals
    parser.read(UNITS / unit)
    return parser


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_systemd_understands_every_line(tmp_path: Path) -> None:
    """`systemd-analyze verify` has nothing to say, once the program is there."""
    text = (UNITS / "gpuguard.service").read_text()
    (tmp_path / "gpuguard.service").write_text(text.replace("/usr/bin/gpuguard run", "/bin/true"))
    shutil.copy(UNITS / "gpuguard.slice", tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", tmp_path / "gpuguard.service", tmp_path / "gpuguard.slice"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_ledger_survives_a_stop() -> None:
    """/run/gpuguard stays when the service stops: what containers were given is remembered."""
    assert settings("gpuguard.service")["Service"]["RuntimeDirectoryPreserve"] == "yes"


def test_nothing_pulls_the_guard_down() -> None:
    """A restart of the bus, or of anything else, does not stop the guard."""
    bonds = {"Requires", "Requisite", "BindsTo", "PartOf", "StopPropagatedFrom", "Conflicts"}
    assert not bonds & set(settings("gpuguard.service")["Unit"])


def test_the_service_brings_no_controller_into_a_slice_of_others() -> None:
    """A cgroup setting in the service could make systemd rewrite its neighbours' device rules, on v1."""
    service = settings("gpuguard.service")["Service"]
    assert service["Slice"] == "gpuguard.slice"
    controllers = ("CPU", "IO", "BlockIO", "Memory", "Tasks", "Allowed", "Startup", "Device", "Delegate")
    assert not [key for key in service if key.startswith(controllers)]


def test_it_may_read_device_programs() -> None:
    """What bpf(2) needs on cgroup v2 is neither dropped nor hidden, and a descriptor for each container is allowed."""
    service = settings("gpuguard.service")["Service"]
    assert service["CapabilityBoundingSet"].startswith("~")
    dropped = set(service["CapabilityBoundingSet"][1:].split())
    assert not dropped & {"CAP_BPF", "CAP_PERFMON", "CAP_SYS_ADMIN", "CAP_SYSLOG", "CAP_SYS_RESOURCE"}
    assert not {"PrivateBPF", "PrivateUsers", "ProtectControlGroups", "ProtectKernelLogs"} & set(service)
    assert int(service["LimitNOFILE"]) >= 10_000


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
def test_no_filtered_set_of_calls_has_bpf() -> None:
    """bpf(2) is in none of the sets of system calls that the service may not make."""
    calls = settings("gpuguard.service")["Service"]["SystemCallFilter"]
    assert calls.startswith("~")
    sets = calls[1:].split()
    listed = subprocess.run(
        ["systemd-analyze", "syscall-filter", *sets], capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(sets) <= set(listed)
    assert "bpf" not in listed


def test_errors_that_a_restart_cannot_mend_end_it() -> None:
    """The exit codes for privileges and configuration do not make a loop of restarts; all others do."""
    service = settings("gpuguard.service")["Service"]
    assert service["Restart"] == "always"
    assert service["RestartPreventExitStatus"].split() == ["77", "78"]
