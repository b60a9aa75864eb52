"""From fresh namespaces to a running systemd: `python -m tests.lab.stage NAME ROOTFS`, as their first process."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path

from tests.lab.devices import FUSE, NVIDIA, PLAIN
from tests.lab.errors import LabError
from tests.lab.process import identify
from tests.lab.record import Record, load

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The node's only goal. The machine's own services are not wanted: its /etc/systemd/system is hidden.
_TARGET = """\
[Unit]
Description=Test node
Requires=basic.target dbus.service
After=basic.target dbus.service
AllowIsolate=yes
"""

# Would act on the machine's kernel, clean /tmp of what is shared from outside, or reload in the middle of a test.
_MASKED = (
    "tmp.mount",
    "dev-hugepages.mount",
    "proc-sys-fs-binfmt_misc.automount",
    "sys-kernel-config.mount",
    "systemd-binfmt.service",
    "systemd-journald-audit.socket",
    "systemd-modules-load.service",
    "systemd-sysctl.service",
    "systemd-tmpfiles-clean.timer",
    "systemd-udevd.service",
    "systemd-udevd-control.socket",
    "systemd-udevd-kernel.socket",
    "systemd-udev-trigger.service",
)


def mount(kind: str, at: Path, *options: str) -> None:
    """Mount a file system of this kind."""
    argv = ["mount", "-t", kind, *(["-o", ",".join(options)] if options else []), kind, str(at)]
    subprocess.run(argv, check=True)


def build(record: Record, rootfs: str) -> Path:
    """Put the node's file systems together and return its root."""
    layers = record.mounts
    root, upper, work = (layers / name for name in ("root", "upper", "work"))
    for directory in (root, upper, work):
        directory.mkdir()
    mount("overlay", root, f"lowerdir={rootfs}", f"upperdir={upper}", f"workdir={work}")
    if not (root / "lib/systemd/systemd").exists():
        raise LabError(f"{rootfs} has no systemd (/lib/systemd/systemd): install the package systemd")
    mount("proc", root / "proc")
    for guarded in (root / "proc/sys", root / "proc/sysrq-trigger"):
        if guarded.exists():  # the kernel is the machine's: no settings of it from here
            subprocess.run(["mount", "--bind", "-o", "ro", str(guarded), str(guarded)], check=True)
    mount("sysfs", root / "sys", "ro")
    mount("tmpfs", root / "run", "mode=755")
    _devices(root)
    _cgroups(record, root)
    if (root / "lib/modules").exists():
        mount("tmpfs", root / "lib/modules", "mode=755")
    return root


def _devices(root: Path) -> None:
    dev = root / "dev"
    mount("tmpfs", dev, "mode=755", "nosuid")
    for device in (*PLAIN, *NVIDIA, FUSE):
        device.make(root)
    for name in ("pts", "shm"):
        (dev / name).mkdir()
    mount("devpts", dev / "pts", "newinstance", "ptmxmode=0666", "mode=620")
    mount("tmpfs", dev / "shm")
    (dev / "ptmx").symlink_to("pts/ptmx")
    (dev / "console").touch()


def _cgroups(record: Record, root: Path) -> None:
    top = root / "sys/fs/cgroup"
    if record.mode == "v2":
        mount("cgroup2", top)
        return
    mount("tmpfs", top, "mode=755")
    for hierarchy in record.hierarchies:
        hierarchy.mount(top / hierarchy.mount_name)
        for controller in hierarchy.controllers.split(","):
            if not (top / controller).exists():  # co-mounted: each name leads to the one directory
                (top / controller).symlink_to(hierarchy.mount_name)


def configure(record: Record, root: Path) -> None:
    """Write the files that make this system a test node."""
    units = root / "etc/systemd/system"
    bus = next((path.readlink() for path in units.glob("dbus.service")), None)  # dbus-broker takes the name so
    shutil.rmtree(units)
    units.mkdir(parents=True)
    if bus is not None:
        (units / "dbus.service").symlink_to(bus)
    (units / "lab.target").write_text(_TARGET, encoding="ascii")
    (units / "default.target").symlink_to("lab.target")
    for unit in _MASKED:
        (units / unit).symlink_to("/dev/null")
    for table in ("fstab", "crypttab"):
        (root / "etc" / table).write_text("")
    machine_id = root / "etc/machine-id"
    machine_id.unlink(missing_ok=True)
    machine_id.write_text(secrets.token_hex(16) + "\n", encoding="ascii")
    tmpfiles, journald = root / "etc/tmpfiles.d", root / "etc/systemd/journald.conf.d"
    for directory in (tmpfiles, journald):
        directory.mkdir(parents=True, exist_ok=True)
    (tmpfiles / "tmp.conf").write_text("q /tmp 1777 root root -\nq /var/tmp 1777 root root -\n", encoding="ascii")
    (journald / "lab.conf").write_text("[Journal]\nStorage=volatile\nRateLimitBurst=0\nAudit=\n", encoding="ascii")
    (root / "etc/hostname").write_text(f"lab-{record.name}\n", encoding="ascii")


def enter(root: Path) -> None:
    """Make `root` the root of this mount namespace, with nothing of the machine's in it."""
    os.chdir(root)
    Path(".outer").mkdir(exist_ok=True)
    subprocess.run(["pivot_root", ".", ".outer"], check=True)
    subprocess.run(["umount", "--lazy", "/.outer"], check=True)
    Path("/.outer").rmdir()


def main() -> None:
    """Become the node's systemd."""
    name, rootfs = sys.argv[1:]
    record = load(name)
    # The /proc of outside tells this process, which is 1 in here, its number outside.
    init = identify(int(str(Path("/proc/self").readlink())))
    if record is None or init is None:
        raise SystemExit(f"node {name}: no record, or no /proc")
    root = build(record, rootfs)
    configure(record, root)
    record.note_init(init)
    enter(root)
    environment = {
        "container": "lab",
        "PATH": PATH,
        "TERM": "linux",
        "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE": "1",  # systemd 256 and later refuse cgroup v1 without it
    }
    systemd = "/lib/systemd/systemd"
    os.execve(systemd, [systemd, "--system", "--log-target=console", "--show-status=0"], environment)  # noqa: S606


if __name__ == "__main__":
    main()
