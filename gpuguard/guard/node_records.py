"""Reads what a node's runtimes, NVIDIA's toolkit and the kernel say of a container, and puts it together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Optional, TypeVar

from gpuguard.config import Paths
from gpuguard.errors import CgroupUnreadableError, GpuguardError, RuntimeFileError, ToolkitError
from gpuguard.guard.devices import GuardedDevices
from gpuguard.guard.scope import Scope
from gpuguard.kernel.container_init import ContainerInits
from gpuguard.kernel.gpu_inventory import read_inventory
from gpuguard.model.container_group import ContainerGroup
from gpuguard.model.derive import Requested, derive
from gpuguard.model.gpu_inventory import GpuInventory
from gpuguard.model.gpu_translation import granted, translate
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.mounts import corroborated
from gpuguard.model.nvidia_request import HookRequest, honoured, request_of
from gpuguard.model.runtime_record import Bundle, RuntimeRecord
from gpuguard.model.scope_name import NSPAWN
from gpuguard.runtimes.records import RuntimeFiles
from gpuguard.runtimes.toolkit_files import ToolkitFiles

# A driver that is being loaded, or a host that goes to sleep, may keep one waiting. Seconds.
_PATIENCE = 5.0
_FILES = "the runtime's files"

_Read = TypeVar("_Read")


class NodeRecords:
    """The files of the runtimes and of NVIDIA's toolkit, the GPUs there are, and the containers' first processes."""

    def __init__(self, paths: Paths, guarded: GuardedDevices) -> None:
        self._proc, self._dev = Path(paths.proc), Path(paths.dev)
        self._guarded = guarded
        self._files = RuntimeFiles(Path(paths.root), self._proc)
        self._toolkits = ToolkitFiles(Path(paths.root))
        self._inits = ContainerInits(self._proc, self._dev)
        self._inventory: Optional[GpuInventory] = None
        self._generation = -1
        self._read_at = 0.0
        # A file may be on a slow disk. One thread: what hangs must not take another one each time.
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="records")

    def close(self) -> None:
        """End the thread when it has done what it is at."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def vouches(self, group: ContainerGroup) -> bool:
        """Whether a runtime's own files name this very control group as that of a container."""
        try:
            if group.container.runtime == NSPAWN:
                return await self._read("systemd-machined's files", self._files.confirmed, group.container)
            bundle, _ = await self._read(_FILES, self._files.find, group.container, group.control_group)
        except GpuguardError:  # what is not believed vouches for nobody
            return False
        return bundle is not None

    async def read(self, scope: Scope) -> RuntimeRecord:
        """Return what is known of the container of a scope. Raises GpuguardError."""
        group = scope.target.control_group
        bundle, identity = await self._read(_FILES, self._files.find, scope.container, group)
        request = request_of(bundle.spec) if bundle is not None else None
        requested = None
        if bundle is not None and request is not None:
            requested = await self._requested(bundle, request, group)
        return derive(scope.container.runtime, identity, bundle, self._guarded, requested)

    async def _requested(self, bundle: Bundle, request: HookRequest, control_group: str) -> Requested:
        """Return what NVIDIA's hook gave a container."""
        try:
            toolkit = await self._read("the toolkit's files", self._toolkits.of, request)
        except (ToolkitError, RuntimeFileError) as error:
            return Requested(doubts=(str(error),))
        asked = honoured(request, bundle.spec, toolkit, bundle.since)
        if isinstance(asked, str):
            unknown = request.trouble is not None or toolkit.changed > bundle.since
            return Requested(doubts=(asked,)) if unknown else Requested(refusal=asked)
        try:
            inventory = await self._gpus(bundle.since)
        except (CgroupUnreadableError, RuntimeFileError) as error:
            return Requested(doubts=(str(error),))
        found = translate(asked, inventory, bundle.since)
        rules, doubts = granted(found, self._mounted(bundle, inventory, control_group))
        return Requested(rules, found.possible, f"{asked.why} in {bundle.path}", doubts)

    def _mounted(
        self, bundle: Bundle, inventory: GpuInventory, control_group: str
    ) -> Optional[frozenset[DeviceNumber]]:
        """Return the devices that the hook has mounted in the container, None where its mounts prove nothing."""
        first = self._inits.look(bundle.pid, control_group) if bundle.pid is not None else None
        dev = self._inits.host_dev()
        if first is None or dev is None:
            return None
        return corroborated(first, bundle.spec, dev, {path: node.number for path, node in inventory.nodes.items()})

    async def _gpus(self, since: float) -> GpuInventory:
        """Return the GPUs of the host as they were not before `since`, and not before devices have come or gone.

        Raises CgroupUnreadableError, RuntimeFileError.
        """
        generation = self._guarded.generation
        # MIG instances are made without a word, and are there before a container that has them.
        if self._inventory is None or generation != self._generation or self._read_at < since:
            self._read_at = time.time()
            self._inventory = await self._read("NVIDIA's driver", read_inventory, self._proc, self._dev)
            self._generation = generation
        return self._inventory

    async def _read(self, what: str, read: Callable[..., _Read], *args: object) -> _Read:
        """Read in the thread. Raises RuntimeFileError when that takes too long, and what `read` raises."""
        reading = asyncio.get_running_loop().run_in_executor(self._reader, read, *args)
        await asyncio.wait({reading}, timeout=_PATIENCE)
        if not reading.done():
            reading.cancel()
            raise RuntimeFileError(f"{what}: no answer in {_PATIENCE:.0f} s")
        return reading.result()
