"""What a container was given, read from a host's files: the runtime's, NVIDIA's, and the kernel's, all made here."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from gpuguard.config import Devices, Paths
from gpuguard.errors import CgroupUnreadableError, RuntimeFileError, RuntimeFileLateError
from gpuguard.guard import node_records
from gpuguard.guard.devices import GuardedDevices
from gpuguard.guard.node_records import NodeRecords
from gpuguard.kernel.procfs import Host
from gpuguard.model.container_group import parse
from gpuguard.model.gpu_inventory import GpuInventory
from gpuguard.model.grant import Source
from tests.guard.made import GROUP, ID, scope
from tests.runtimes.tree import Tree, needs_root

pytestmark = needs_root

PID = 4711
BUNDLE = f"/run/docker/containerd/daemon/io.containerd.runtime.v2.task/moby/{ID}"
CONFIG = f"{BUNDLE}/config.json"
TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
HOOK = {"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}


class Made:
    """A host's files, with one container, and what reads them."""

    def __init__(self, path: Path) -> None:
        self.tree = Tree(path)
        self.tree.directory("/dev")
        self.tree.write("/proc/devices", "Character devices:\n195 nvidia\n")
        # Longer ago than the container.
        os.utime(self.tree.write(TOOLKIT, ""), (1.0, 1.0))
        self.records = self.reading()

    def reading(self) -> NodeRecords:
        """Return what reads these files anew."""
        paths = Paths(root=str(self.tree.root), proc=str(self.tree.path("/proc")), dev=str(self.tree.path("/dev")))
        self.guarded = GuardedDevices(Devices(), Host(Path(paths.proc), Path(paths.dev)))
        self.guarded.refresh()
        return NodeRecords(paths, self.guarded)

    def run(self, *devices: int, env: str = "", **more: Any) -> None:  # noqa: ANN401 - parts of a specification
        """Write the files of a container whose specification allows GPUs by their minors, and that asks for others."""
        rules = [{"allow": True, "type": "c", "major": 195, "minor": minor, "access": "rw"} for minor in devices]
        spec = {
            "linux": {"cgroupsPath": f"system.slice:docker:{ID}", "resources": {"devices": rules}},
            "process": {"env": [f"NVIDIA_VISIBLE_DEVICES={env}"], "capabilities": {"bounding": []}},
            **more,
        }
        self.tree.write(CONFIG, json.dumps(spec))
        ticks = int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
        self.tree.process(PID, [GROUP], ticks)
        noted = {"init_process_pid": PID, "init_process_start": ticks, "config": {"labels": [f"bundle={BUNDLE}"]}}
        self.tree.write(f"/run/docker/runtime-runc/moby/{ID}/state.json", json.dumps(noted))


@pytest.fixture
async def host(tmp_path: Path) -> AsyncIterator[Made]:
    """Return a host."""
    made = Made(tmp_path)
    yield made
    made.records.close()


async def test_what_the_specification_gives(host: Made) -> None:
    """Its guarded rules; who asks nobody is refused nothing."""
    host.run(0, 255)
    record = await host.records.read(scope())
    assert {str(rule) for rule in record.rules} == {"c 195:0 rw", "c 195:255 rw"}
    assert (record.path, record.trusted, record.asked, record.doubts) == (CONFIG, True, False, ())


async def test_without_files(host: Made) -> None:
    """Nothing is known, and nobody vouches."""
    record = await host.records.read(scope())
    assert (record.path, record.trusted, record.rules) == (None, None, frozenset())
    group = parse(f"/docker/{ID}")
    assert group is not None
    assert not await host.records.vouches(group)


async def test_files_that_are_not_believed(host: Made) -> None:
    """That is an error for who asks what it was given, and no for who asks whether it is a container."""
    host.run(0)
    host.tree.path(CONFIG).chmod(0o666)
    with pytest.raises(RuntimeFileError, match="others than root may write it"):
        await host.records.read(scope())
    group = parse(f"/docker/{ID}")
    assert group is not None
    assert not await host.records.vouches(group)
    machine = parse("/machine.slice/machine-box.scope")
    assert machine is not None
    assert not await host.records.vouches(machine)


async def test_its_own_group_vouches(host: Made) -> None:
    """A specification counts for the very control group that it names."""
    host.run(0, linux={"cgroupsPath": f"/docker/{ID}"})
    host.tree.process(PID, [f"/docker/{ID}"], int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK")))
    host.tree.write(
        f"/run/docker/runtime-runc/moby/{ID}/state.json",
        json.dumps({"init_process_pid": PID, "config": {"labels": [f"bundle={BUNDLE}"]}}),
    )
    own, other = parse(f"/docker/{ID}"), parse(f"/mine/{ID}")
    assert own is not None
    assert other is not None
    assert await host.records.vouches(own)
    assert not await host.records.vouches(other)


@pytest.mark.invariant(1)
class TestRequest:
    """NVIDIA's hook in the specification."""

    async def test_one_that_the_toolkit_refuses(self, host: Made) -> None:
        """That is no doubt: it was given nothing."""
        host.tree.write(TOOLKIT, "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n")
        await asyncio.sleep(0.02)  # the file system's clock ticks
        host.run(env="all", hooks={"prestart": [HOOK]})
        record = await host.records.read(scope())
        assert (record.asked, record.doubts, record.rules) == (True, (), frozenset())
        assert "from privileged containers only" in (record.refusal or "")

    async def test_a_configuration_of_later(self, host: Made) -> None:
        """What it said then is not known."""
        host.run(env="all", hooks={"prestart": [HOOK]})
        await asyncio.sleep(0.02)
        host.tree.write(TOOLKIT, "\n")
        record = await host.records.read(scope())
        assert (record.refusal, record.rules) == (None, frozenset())
        assert "was changed after the container's start" in record.doubts[0]

    @pytest.mark.invariant(4)
    async def test_a_configuration_that_is_read_in_two_ways(self, host: Made) -> None:
        """It is in doubt what was given, as with a hook that is not understood: neither was it refused."""
        host.tree.write(TOOLKIT, 'swarm-resource = "NVIDIA_VISIBLE_DEVICES,OTHER"\n')
        await asyncio.sleep(0.02)
        host.run(env="0", hooks={"prestart": [HOOK]})
        record = await host.records.read(scope())
        assert (record.refusal, record.rules) == (None, frozenset())
        assert "which not all versions of the hook take apart" in record.doubts[0]
        host.run(env="0", hooks={"prestart": [{**HOOK, "args": [*HOOK["args"][:1], "--new", "prestart"]}]})
        record = await host.records.read(scope())
        assert (record.refusal, "'new' is not known" in record.doubts[0]) == (None, True)

    async def test_one_that_makes_no_sense(self, host: Made) -> None:
        """Nor is what the hook made of that."""
        host.tree.write(TOOLKIT, "=")
        host.run(env="all", hooks={"prestart": [HOOK]})
        record = await host.records.read(scope())
        assert TOOLKIT in record.doubts[0]
        assert record.refusal is None

    async def test_a_host_without_its_devices(self, host: Made) -> None:
        """What is not there now cannot be given, and is told; the specification's own rules stand."""
        await asyncio.sleep(0.02)
        host.run(1, env="0", hooks={"prestart": [HOOK]})
        record = await host.records.read(scope())
        assert [(str(grant.rule), grant.source) for grant in record.grants] == [("c 195:1 rw", Source.SPEC)]
        assert any("/dev/nvidiactl is not there" in doubt for doubt in record.doubts)

    async def test_a_driver_that_is_slow(self, host: Made, monkeypatch: pytest.MonkeyPatch) -> None:
        """What did not come in time is asked for again soon; nothing is held against the container."""
        await asyncio.sleep(0.02)
        host.run(env="0", hooks={"prestart": [HOOK]})
        read = host.records._reader.read

        async def slow(what: str, job: Callable[[], Any]) -> object:
            if what == "NVIDIA's driver":
                raise RuntimeFileLateError("NVIDIA's driver: no answer in 5 s")
            return await read(what, job)

        monkeypatch.setattr(host.records._reader, "read", slow)
        record = await host.records.read(scope())
        assert (record.late, record.trusted, record.trouble) == (True, True, None)
        assert record.doubts == ("NVIDIA's driver: no answer in 5 s",)

    async def test_a_host_that_tells_nothing(self, host: Made) -> None:
        """Without /proc/devices the request cannot be put in numbers."""
        await asyncio.sleep(0.02)
        host.run(env="0", hooks={"prestart": [HOOK]})
        host.tree.path("/proc/devices").unlink()
        record = await host.records.read(scope())
        assert record.rules == frozenset()
        assert "devices" in record.doubts[0]


class TestInventory:
    """When the driver is asked."""

    @pytest.fixture(autouse=True)
    def inventory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count."""
        self.asked = 0
        self.fails = False
        monkeypatch.setattr(node_records, "read_inventory", self._read)

    def _read(self, _proc: Path, _dev: Path) -> GpuInventory:
        self.asked += 1
        if self.fails:
            raise CgroupUnreadableError("no driver")
        time.sleep(0.02)
        return GpuInventory(excluded=frozenset({self.asked}))

    async def test_once_for_all(self, host: Made) -> None:
        """Containers of before share one reading, also where they ask at once."""
        found = await asyncio.gather(*(host.records._gpus(1.0) for _ in range(20)))
        assert (self.asked, len(set(map(id, found)))) == (1, 1)

    async def test_again_with_other_devices_and_for_a_newer_container(self, host: Made) -> None:
        """MIG instances come without a word: a container that is newer than the reading may have one."""
        await host.records._gpus(1.0)
        host.guarded.generation += 1
        await host.records._gpus(1.0)
        since = time.time()
        found = await asyncio.gather(*(host.records._gpus(since) for _ in range(3)))
        assert self.asked == 3
        assert {tuple(one.excluded) for one in found} == {(3,)}

    async def test_a_failure_is_no_reading(self, host: Made) -> None:
        """What was read before does not become newer by it."""
        await host.records._gpus(1.0)
        self.fails, since = True, time.time()
        with pytest.raises(CgroupUnreadableError):
            await host.records._gpus(since)
        self.fails = False
        assert (await host.records._gpus(since)).excluded == {3}
