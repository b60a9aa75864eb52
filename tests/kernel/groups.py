"""Device cgroups to work on: on the kernel's own v1 hierarchy, and as plain files for what a kernel never says."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuguard.kernel.devices_v1 import DevicesV1
from gpuguard.model.ruleset import ALLOW_ALL
from tests.lab.cgroups import membership

MOUNT = Path("/sys/fs/cgroup/devices")


class Groups:
    """Device cgroups below `root`, and there a slice, and the name of a scope in it."""

    def __init__(self, root: Path, slice_: str) -> None:
        self.root = root
        self.slice = slice_
        self.scope = f"{slice_}/docker-{secrets.token_hex(32)}.scope"
        self.devices = DevicesV1(root)

    def path(self, control_group: str) -> Path:
        """Return the directory of a control group."""
        return self.root / control_group.lstrip("/")

    def named(self, control_group: str) -> str:
        """Return what the control group is called from the top of the kernel's hierarchy."""
        return f"/{self.path(control_group).relative_to(MOUNT)}"

    def make(self, control_group: str, *rules: str) -> int:
        """Make a control group unless it is there, give it these rules alone, and return its inode."""
        self.path(control_group).mkdir(exist_ok=True)
        self.deny(control_group, "a")
        for rule in rules:
            self.allow(control_group, rule)
        return self.inode(control_group)

    def inode(self, control_group: str) -> int:
        """Return the inode of a control group."""
        return self.path(control_group).stat().st_ino

    def allow(self, control_group: str, rule: str) -> None:
        """Write to devices.allow, as anybody may who is root."""
        self._write(control_group, "devices.allow", rule)

    def deny(self, control_group: str, rule: str) -> None:
        """Write to devices.deny."""
        self._write(control_group, "devices.deny", rule)

    def lines(self, control_group: str) -> list[str]:
        """Return the lines of devices.list."""
        return (self.path(control_group) / "devices.list").read_text(encoding="ascii").splitlines()

    def _write(self, control_group: str, file: str, text: str) -> None:
        descriptor = os.open(self.path(control_group) / file, os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


@contextmanager
def kernel_groups() -> Iterator[Groups]:
    """Make a slice on the kernel's v1 devices hierarchy below this process's own group, and remove it afterwards.

    Skips the test where that cannot be.
    """
    if os.geteuid() != 0:
        pytest.skip("needs root: only CAP_SYS_ADMIN may write device rules")
    if not (MOUNT / "devices.list").exists():
        pytest.skip(f"needs the cgroup v1 devices hierarchy at {MOUNT}")
    own = membership(Path("/proc/self/cgroup").read_text(encoding="ascii")).get("devices", "/")
    groups = Groups(MOUNT / own.lstrip("/"), f"/gpuguardtest{secrets.token_hex(6)}.slice")
    if groups.lines("/") != [ALLOW_ALL]:
        pytest.skip("needs a process without a device filter of its own: a group can allow only what its parent does")
    groups.path(groups.slice).mkdir()
    try:
        yield groups
    finally:
        for path, _, _ in os.walk(groups.path(groups.slice), topdown=False):
            Path(path).rmdir()


def plain_groups(root: Path) -> Groups:
    """Make plain files that look like the hierarchy: a slice without a filter and a scope in it."""
    groups = Groups(root, "/system.slice")
    for path in (groups.path("/"), groups.path(groups.slice), groups.path(groups.scope)):
        path.mkdir(exist_ok=True)
        (path / "devices.list").write_text(f"{ALLOW_ALL}\n")
        (path / "devices.allow").write_text("")
    (groups.path(groups.scope) / "devices.list").write_text("c 1:3 rwm\n")
    return groups
