"""What /proc and /dev say of the host's devices and of this boot."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.errors import CgroupUnreadableError
from gpuguard.kernel.procfs import Host

THIS_HOST = Host(Path("/proc"), Path("/dev"))


class TestProc:
    """Files of /proc."""

    def test_devices(self) -> None:
        """The text of /proc/devices is returned as it is."""
        assert "Character devices:\n" in THIS_HOST.devices()

    def test_devices_of_another_root(self, tmp_path: Path) -> None:
        """The host's /proc may be seen under another name."""
        (tmp_path / "devices").write_bytes(b"Character devices:\n195 nvidi\xff\n")
        assert Host(tmp_path, tmp_path).devices() == "Character devices:\n195 nvidi\ufffd\n"

    @pytest.mark.invariant(4)
    def test_devices_that_cannot_be_read(self, tmp_path: Path) -> None:
        """A /proc without devices is unreadable, not one without drivers."""
        with pytest.raises(CgroupUnreadableError, match=f"{tmp_path}/devices: cannot read: No such file"):
            Host(tmp_path, tmp_path).devices()

    def test_boot_id(self) -> None:
        """The boot id is that of the running kernel, without its newline."""
        assert THIS_HOST.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()

    def test_boot_id_unknown(self, tmp_path: Path) -> None:
        """A kernel that does not tell its boot id has an empty one."""
        assert Host(tmp_path, tmp_path).boot_id() == ""


class TestNumbers:
    """Numbers of device nodes."""

    @pytest.mark.parametrize(
        ("path", "number"),
        [
            ("/dev/null", ("c", 1, 3)),
            ("/dev/gpuguard-no-such-node", None),
            ("/dev", None),
            ("null", None),
            ("/etc/passwd", None),
            ("", None),
        ],
    )
    def test_of_a_path(self, path: str, number: Optional[tuple[str, int, int]]) -> None:
        """A device node below /dev has type, major and minor; anything else has none."""
        assert THIS_HOST.number(path) == number

    def test_of_a_link(self, tmp_path: Path) -> None:
        """Links are followed, as systemd follows them; what is no device node has no number."""
        (tmp_path / "alias").symlink_to("/dev/zero")
        (tmp_path / "file").touch()
        (tmp_path / "dangling").symlink_to(tmp_path / "gone")
        host = Host(Path("/proc"), tmp_path)
        numbers = [host.number(f"/dev/{name}") for name in ("alias", "file", "dangling")]
        assert numbers == [("c", 1, 5), None, None]

    def test_of_a_block_device(self, tmp_path: Path) -> None:
        """A block device has its own type."""
        try:
            os.mknod(tmp_path / "sda", stat.S_IFBLK, os.makedev(8, 0))
        except PermissionError:
            pytest.skip("needs root to make a device node")
        assert Host(Path("/proc"), tmp_path).number("/dev/sda") == ("b", 8, 0)

    def test_of_all_that_match(self, tmp_path: Path) -> None:
        """Nodes are found by patterns, in directories too, under the names that the host has for them."""
        (tmp_path / "caps").mkdir()
        for name in ("gpu1", "gpu0", "caps/cap1", "other"):
            (tmp_path / name).symlink_to("/dev/null")
        (tmp_path / "gpu-file").touch()
        found = Host(Path("/proc"), tmp_path).nodes(["/dev/gpu*", "/dev/caps/*", "/dev/none*"])
        assert [path for path, _ in found] == ["/dev/gpu0", "/dev/gpu1", "/dev/caps/cap1"]

    @pytest.mark.parametrize("pattern", ["/dev/gpu**", "/dev//x", "/dev/.", "/dev/[", "/dev/gpu0/*"])
    def test_of_an_odd_pattern(self, tmp_path: Path, pattern: str) -> None:
        """Whatever the configuration allows as a pattern finds what it means, and is no error."""
        (tmp_path / "gpu0").symlink_to("/dev/null")
        found = list(Host(Path("/proc"), tmp_path).nodes([pattern]))
        assert found == ([("/dev/gpu0", ("c", 1, 3))] if pattern == "/dev/gpu**" else [])
