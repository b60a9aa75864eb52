"""GPUs of hosts that are made here: files in the form that NVIDIA's driver prints, and nodes.

The form of `information` is that of nv_procfs_read_gpu_info (open-gpu-kernel-modules 515 and later) and of machines
whose owners have shown it; mig-minors and the capabilities are as in NVIDIA's MIG User Guide. No driver was at hand.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Optional

import pytest

from gpuguard.errors import CgroupUnreadableError
from gpuguard.kernel.gpu_inventory import read_inventory
from gpuguard.model.gpu_inventory import Gpu, GpuInventory, MigInstance, Node
from gpuguard.model.gpu_translation import translate
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.nvidia_request import Honoured
from gpuguard.model.rule import CHAR
from tests.model.gpus import rules

UUID = "GPU-9221d5d1-b60b-a624-bf14-0a1819cfda3b"
# Tabs and all.
INFORMATION = """\
Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 10
GPU UUID: \t {uuid}
Video BIOS: \t 92.00.36.00.01
Bus Type: \t PCIe
DMA Size: \t 52 bits
DMA Mask: \t 0xfffffffffffff
Bus Location: \t {bus}
Device Minor: \t {minor}
GPU Firmware: \t 535.129.03
GPU Excluded:\t {excluded}
"""
# Before driver 450.
OLD = (
    "Model:           GeForce GTX 1080 Ti\nGPU UUID:        {uuid}\nBus Location:    {bus}\nDevice Minor:    {minor}\n"
)
DEVICES = """\
Character devices:
  1 mem
195 nvidia
195 nvidia-modeset
195 nvidiactl
510 nvidia-uvm
511 nvidia-caps

Block devices:
  8 sd
"""


class Machine:
    """A /proc and a /dev."""

    def __init__(self, path: Path) -> None:
        self.proc, self.dev = path / "proc", path / "dev"
        self.write("devices", DEVICES)
        self.dev.mkdir()

    def write(self, name: str, text: str) -> None:
        """Write a file of /proc."""
        path = self.proc / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="ascii")

    def gpu(self, bus: str, minor: int, uuid: str = UUID, excluded: str = "No", form: str = INFORMATION) -> None:
        """Add a GPU as the driver shows it."""
        text = form.format(uuid=uuid, bus=bus, minor=minor, excluded=excluded)
        self.write(f"driver/nvidia/gpus/{bus}/information", text)

    def instance(self, path: str, minor: int, told: Optional[int] = None) -> None:
        """Add what opens an instance, such as "gpu0/gi1/access"; `told` is what mig-minors says of it."""
        gpu, _, rest = path.partition("/")
        text = f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n"
        self.write(f"driver/nvidia/capabilities/{gpu}/mig/{rest}", text)
        minors = self.proc / "driver/nvidia-caps/mig-minors"
        before = minors.read_text(encoding="ascii") if minors.exists() else "config 1\nmonitor 2\n"
        self.write("driver/nvidia-caps/mig-minors", f"{before}{path} {minor if told is None else told}\n")

    def node(self, name: str, major: int, minor: int, made: float = 10.0) -> None:
        """Make a node."""
        path = self.dev / name
        path.parent.mkdir(exist_ok=True)
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("making device nodes needs root")
        os.utime(path, (made, made))

    def read(self) -> GpuInventory:
        """Return the inventory."""
        return read_inventory(self.proc, self.dev)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine with the driver's /proc/devices and nothing else."""
    return Machine(tmp_path)


class TestGpus:
    """GPUs below /proc/driver/nvidia/gpus."""

    def test_in_the_order_of_addresses(self, machine: Machine) -> None:
        """Which is that of indexes, and not that of minors; "10000" comes after "ffff"."""
        machine.gpu("0000:c1:00.0", 0, UUID)
        machine.gpu("0000:17:00.0", 5, UUID.replace("GPU-9", "GPU-a"))
        machine.gpu("10000:01:00.0", 2, UUID.replace("GPU-9", "GPU-b"))
        machine.gpu("ffff:01:00.0", 3, UUID.replace("GPU-9", "GPU-c"))
        assert machine.read().gpus == (
            Gpu(0, 5, UUID.replace("GPU-9", "GPU-a"), "0000:17:00.0"),
            Gpu(1, 0, UUID, "0000:c1:00.0"),
            Gpu(2, 3, UUID.replace("GPU-9", "GPU-c"), "ffff:01:00.0"),
            Gpu(3, 2, UUID.replace("GPU-9", "GPU-b"), "10000:01:00.0"),
        )

    def test_an_older_form(self, machine: Machine) -> None:
        """Blanks instead of tabs, and fewer lines."""
        machine.gpu("0000:17:00.0", 1, form=OLD)
        assert machine.read().gpus == (Gpu(0, 1, UUID, "0000:17:00.0"),)

    @pytest.mark.parametrize("key", ["GPU Excluded", "Blacklisted"])
    def test_excluded_ones_have_no_index(self, machine: Machine, key: str) -> None:
        """NVML does not count them."""
        machine.gpu("0000:17:00.0", 0, excluded="Yes", form=INFORMATION.replace("GPU Excluded", key))
        machine.gpu("0000:18:00.0", 1)
        found = machine.read()
        assert found.gpus == (Gpu(0, 1, UUID, "0000:18:00.0"),)
        assert found.excluded == {0}

    def test_a_uuid_that_is_not_known_yet(self, machine: Machine) -> None:
        """The driver prints question marks until the GPU has been used."""
        machine.gpu("0000:17:00.0", 0, "GPU-????????-????-????-????-????????????")
        assert machine.read().gpus == (Gpu(0, 0, "", "0000:17:00.0"),)

    def test_no_driver(self, machine: Machine) -> None:
        """Nothing is known of GPUs then, which is not that there are none."""
        assert machine.read().gpus is None
        (machine.proc / "driver/nvidia/gpus").mkdir(parents=True)
        assert machine.read().gpus == ()

    def test_a_minor_that_no_node_can_have(self, machine: Machine) -> None:
        """The kernel has twenty bits for it."""
        machine.gpu("0000:17:00.0", (1 << 20) - 1)
        assert machine.read().gpus is not None
        machine.gpu("0000:18:00.0", 1 << 20)
        assert machine.read().gpus is None

    @pytest.mark.invariant(4)
    @pytest.mark.parametrize("text", ["", "Device Minor: x\n", "Device Minor: 99999999\n", "\0" * 100, "x" * 100_000])
    def test_one_that_cannot_be_read(self, machine: Machine, text: str) -> None:
        """Then no index is known."""
        machine.gpu("0000:17:00.0", 0)
        machine.write("driver/nvidia/gpus/0000:18:00.0/information", text)
        assert machine.read().gpus is None

    def test_an_address_that_is_none(self, machine: Machine) -> None:
        """Its place in the order is not known."""
        machine.gpu("0000:17:00.0", 0)
        machine.write("driver/nvidia/gpus/x/information", "Device Minor: 1\n")
        assert machine.read().gpus is None

    def test_one_minor_twice(self, machine: Machine) -> None:
        """Which of them it is cannot be told."""
        machine.gpu("0000:17:00.0", 0)
        machine.gpu("0000:18:00.0", 0)
        assert machine.read().gpus is None

    @pytest.mark.invariant(10)
    def test_too_many(self, machine: Machine) -> None:
        """No host has that many."""
        for number in range(256):
            machine.gpu(f"{number:04x}:17:00.0", number)
        assert len(machine.read().gpus or ()) == 256
        machine.gpu("0100:17:00.0", 256)
        assert machine.read().gpus is None

    @pytest.mark.invariant(4)
    def test_no_proc_devices(self, machine: Machine) -> None:
        """Without it nothing can be said."""
        (machine.proc / "devices").unlink()
        with pytest.raises(CgroupUnreadableError):
            machine.read()


class TestInstances:
    """MIG instances below /proc/driver/nvidia/capabilities."""

    def test_their_minors(self, machine: Machine) -> None:
        """The two that open a compute instance: its GPU instance's and its own."""
        machine.instance("gpu1/gi3/access", 165)
        machine.instance("gpu1/gi3/ci0/access", 166)
        machine.instance("gpu1/gi5/access", 183)
        machine.write("driver/nvidia/capabilities/mig/config", "DeviceFileMinor: 1\n")
        machine.write("driver/nvidia/capabilities/fabric-imex-mgmt", "DeviceFileMinor: 513\n")
        assert machine.read().instances == (MigInstance(1, 3, 0, (165, 166)),)

    def test_minors_that_contradict(self, machine: Machine) -> None:
        """Nothing is guessed."""
        machine.instance("gpu1/gi3/access", 165)
        machine.instance("gpu1/gi3/ci0/access", 166, told=167)
        assert machine.read().instances == ()

    def test_without_a_minor(self, machine: Machine) -> None:
        """Before nvidia-caps had nodes, access was by the file itself."""
        machine.write("driver/nvidia/capabilities/gpu1/mig/gi3/access", "")
        machine.write("driver/nvidia/capabilities/gpu1/mig/gi3/ci0/access", "")
        assert machine.read().instances == ()


class TestNodes:
    """Nodes in /dev."""

    def test_nodes(self, machine: Machine) -> None:
        """All of NVIDIA's, with their number and time; no links, files, or other drivers' nodes."""
        machine.node("nvidia0", 195, 0, made=12.5)
        machine.node("nvidia-caps/nvidia-cap3", 511, 3)
        machine.node("null", 1, 3)
        machine.node("nvidia-caps-imex-channels/channel0", 509, 0)
        (machine.dev / "nvidia1").symlink_to("nvidia0")
        (machine.dev / "nvidia2").write_text("")
        assert machine.read().nodes == {
            "/dev/nvidia0": Node(DeviceNumber(CHAR, 195, 0), 12.5),
            "/dev/nvidia-caps/nvidia-cap3": Node(DeviceNumber(CHAR, 511, 3), 10.0),
        }

    @pytest.mark.invariant(1)
    def test_a_request_in_exact_minors(self, machine: Machine) -> None:
        """From files to rules: GPU, control, unified memory and one MIG instance, and nothing else."""
        machine.gpu("0000:c1:00.0", 0, UUID)
        machine.gpu("0000:17:00.0", 1, UUID.replace("GPU-9", "GPU-a"))
        machine.instance("gpu0/gi3/access", 30)
        machine.instance("gpu0/gi3/ci0/access", 31)
        for name, major, minor in (
            ("nvidiactl", 195, 255),
            ("nvidia0", 195, 0),
            ("nvidia1", 195, 1),
            ("nvidia-uvm", 510, 0),
            ("nvidia-uvm-tools", 510, 1),
            *((f"nvidia-caps/nvidia-cap{minor}", 511, minor) for minor in (1, 2, 30, 31)),
        ):
            machine.node(name, major, minor)
        request = Honoured((f"MIG-{UUID}/3/0", "0"), frozenset({"compute"}), "")
        wanted = rules("195:255", "510:0", "510:1", "195:0", "195:1", "511:30", "511:31")
        assert translate(request, machine.read(), 100.0).exact == wanted
