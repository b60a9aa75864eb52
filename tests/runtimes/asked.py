"""What the runtimes' files say, asked by a program in a node; run as a program it is the one that answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpuguard.errors import GpuguardError
from gpuguard.model.scope_name import ContainerScope
from gpuguard.runtimes.records import RuntimeFiles
from tests.lab.node import ROOT, Node


def ask(node: Node, container: ContainerScope, control_group: str) -> dict[str, Any]:
    """Return what RuntimeFiles says in the node: names, and of the bundle what a test looks at."""
    argv = [sys.executable, "-m", "tests.runtimes.asked", container.runtime, container.id, control_group]
    answer: dict[str, Any] = json.loads(node.run(argv, env={"PYTHONPATH": str(ROOT)}).stdout)
    return answer


def _answer(container: ContainerScope, control_group: str) -> dict[str, Any]:
    files = RuntimeFiles(Path("/"))
    try:
        bundle, identity = files.find(container, control_group)
        confirmed = files.confirmed(container)
    except GpuguardError as error:
        return {"error": str(error)}
    said: dict[str, Any] = {"identity": vars(identity), "confirmed": confirmed, "bundle": None}
    if bundle is not None:
        said["bundle"] = bundle.path
        said["pid"] = bundle.pid
        said["allowed"] = sorted(map(str, bundle.spec.allowed))
    return said


if __name__ == "__main__":
    print(json.dumps(_answer(ContainerScope(*sys.argv[1:3]), sys.argv[3])))
