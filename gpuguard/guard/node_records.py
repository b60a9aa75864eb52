"""Reads what a node's runtimes, NVIDIA's toolkit and the kernel say of a container, and puts it together."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import Optional

from gpuguard.config import Paths
from gpuguard.errors import CgroupUnreadableError, GpuguardError, RuntimeFileError, RuntimeFileLateError, ToolkitError
from gpuguard.guard.devices import GuardedDevices
from gpuguard.guard.reader import Reader
from gpuguard.guard.scope import Scope
from gpuguard.kernel.container_init import ContainerInits
from gpuguard.kernel.gpu_inventory import read_inventory
from gpuguard.model.container_group import ContainerGroup
from gpuguard.model.derive import Requested, derive
from gpuguard.model.gpu_inventory import GpuInventory
from gpuguard.model.gpu_translation import granted, translate
from gpuguard.model.majors import DeviceNumber
from gpuguard.model.mounts import corroborated
from gpuguard.model.nvidia_request import Honoured, HookRequest, Untold, honoured, request_of
from gpuguard.model.runtime_record import Bundle, RuntimeRecord
from gpuguard.model.scope_name import NSPAWN
from gpuguard.runtimes.records import RuntimeFiles
from gpuguard.runtimes.toolkit_files import ToolkitFiles

_FILES = "the runtime's files"


class NodeRecords:
    """The files of the runtimes and of NVIDIA's toolkit, the GPUs there are, and the containers' first processes."""

    def __init__(self, paths: Paths, guarded: GuardedDevices) -> None:
        """Read nothing yet. To be called inside the running loop."""
        self._proc, self._dev = Path(paths.proc), Path(paths.dev)
        self._guarded = guarded
        self._files = RuntimeFiles(Path(paths.root), self._proc)
        self._toolkits = ToolkitFiles(Path(paths.root))
        self._inits = ContainerInits(self._proc, self._dev)
        self._inventory: Optional[GpuInventory] = None
        self._generation = -1
        self._read_at = 0.0
        self._reader = Reader("records")
        # Many containers may be new at once: one reads for all.
        self._asking = asyncio.Lock()

    def close(self) -> None:
        """End the thread when it has done what it is at."""
        self._reader.close()

    async def vouches(self, group: ContainerGroup) -> bool:
        """Whether a runtime's own files name this very control group as that of a container."""
        try:
            if group.container.runtime == NSPAWN:
                return await self._reader.read(_FILES, partial(self._files.confirmed, group.container))
            bundle, _ = await self._reader.read(_FILES, partial(self._files.find, group.container, group.control_group))
        except GpuguardError:  # what is not believed vouches for nobody
            return False
        return bundle is not None

    async def read(self, scope: Scope) -> RuntimeRecord:
        """Return what is known of the container of a scope. Raises GpuguardError."""
        group = scope.target.control_group
        bundle, identity = await self._reader.read(_FILES, partial(self._files.find, scope.container, group))
        request = request_of(bundle.spec) if bundle is not None else None
        requested = None
        if bundle is not None and request is not None:
            requested = await self._requested(bundle, request, group)
        return derive(scope.container.runtime, identity, bundle, self._guarded, requested)

    async def _requested(self, bundle: Bundle, request: HookRequest, control_group: str) -> Requested:
        """Return what NVIDIA's hook gave a container."""
        try:
            toolkit = await self._reader.read("the toolkit's files", partial(self._toolkits.of, request))
        except (ToolkitError, RuntimeFileError) as error:
            return _untold(error)
        asked = honoured(request, bundle.spec, toolkit, bundle.since)
        if isinstance(asked, str):
            return Requested(doubts=(asked,)) if isinstance(asked, Untold) else Requested(refusal=asked)
        try:
            inventory = await self._gpus(bundle.since)
            given = partial(self._given, asked, bundle, inventory, control_group)
            return await self._reader.read("the container's mounts", given)
        except (CgroupUnreadableError, RuntimeFileError) as error:
            return _untold(error)

    def _given(self, asked: Honoured, bundle: Bundle, inventory: GpuInventory, control_group: str) -> Requested:
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
        return corroborated(first, bundle.spec, dev, inventory.numbers())

    async def _gpus(self, since: float) -> GpuInventory:
        """Return the GPUs of the host as they were not before `since`, and not before devices have come or gone.

        Raises CgroupUnreadableError, RuntimeFileError.
        """
        async with self._asking:
            generation = self._guarded.generation
            # MIG instances are made without a word, and are there before a container that has them.
            if self._inventory is None or generation != self._generation or self._read_at < since:
                began, read = time.time(), partial(read_inventory, self._proc, self._dev)
                self._inventory = await self._reader.read("NVIDIA's driver", read)
                self._generation, self._read_at = generation, began
            return self._inventory


def _untold(error: GpuguardError) -> Requested:
    """Say that nothing can be told of a request, and why."""
    return Requested(doubts=(str(error),), late=isinstance(error, RuntimeFileLateError))
