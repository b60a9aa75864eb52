"""Reads what a node's runtimes and its kernel say of a container, and puts it together."""

from __future__ import annotations

from gpuguard.guard.scope import Scope
from gpuguard.model.runtime_record import RuntimeRecord


class NodeRecords:
    """The files of the runtimes, NVIDIA's toolkit and the kernel's inventory of this node."""

    def read(self, scope: Scope) -> RuntimeRecord:
        """Return what is known of the container of a scope. Raises GpuguardError."""
        return RuntimeRecord(runtime=scope.container.runtime)
