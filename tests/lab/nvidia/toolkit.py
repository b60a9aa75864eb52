"""Puts the imitation of NVIDIA's container toolkit into a node: its runtime, its hook and its config.toml."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Union

from tests.lab.containers import Engine
from tests.lab.node import ROOT, Node
from tests.lab.nvidia import hook
from tests.lab.nvidia.runtime import HOOK

RUNTIME = "/usr/bin/nvidia-container-runtime"

ENVVAR = "accept-nvidia-visible-devices-envvar-when-unprivileged"
VOLUMES = "accept-nvidia-visible-devices-as-volume-mounts"
NO_CGROUPS = "nvidia-container-cli.no-cgroups"
PAUSE = "lab.pause"
"""Of the imitation's own: seconds, as a string, that the hook waits after each device."""

# The node's own Python: this machine's may need a newer C library than the node has.
_PROGRAM = f"""\
#!/usr/bin/python3 -I
import sys
sys.path.insert(0, {str(ROOT)!r})
sys.dont_write_bytecode = True
from tests.lab.nvidia import @MODULE@
@MODULE@.main()
"""


def install(node: Node) -> None:
    """Install it, with the toolkit's defaults. Call it before the first container: dockerd reads its runtimes once."""
    for path, module in ((HOOK, "hook"), (RUNTIME, "runtime")):
        program = node.path(path)
        program.write_text(_PROGRAM.replace("@MODULE@", module), encoding="utf-8")
        program.chmod(0o755)
    daemon = node.path("/etc/docker/daemon.json")
    daemon.parent.mkdir(parents=True, exist_ok=True)
    daemon.write_text(json.dumps({"runtimes": {"nvidia": {"path": RUNTIME}}}), encoding="utf-8")
    configure(node)


def configure(node: Node, settings: Mapping[str, Union[str, bool]] = {}) -> None:
    """Write a config.toml with these keys and the toolkit's defaults; a key of a table is "table.key"."""
    defaults = {ENVVAR: True, VOLUMES: False, NO_CGROUPS: False, "nvidia-container-runtime.mode": "legacy"}
    tables: dict[str, list[str]] = {"": []}
    for name, value in {**defaults, **settings}.items():
        table, _, key = name.rpartition(".")
        tables.setdefault(table, []).append(f"{key} = {json.dumps(value)}")
    texts = [(f"[{table}]\n" if table else "") + "\n".join(lines) + "\n" for table, lines in tables.items()]
    path = node.path(hook.CONFIG)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(texts), encoding="utf-8")


def options(engine: Engine, *wanted: str, visible: str) -> tuple[str, ...]:
    """Return what makes the engine's `run` ask for `visible` devices; `wanted` are further options."""
    runtime = "nvidia" if engine.program == "docker" else RUNTIME
    return (f"--runtime={runtime}", f"--env=NVIDIA_VISIBLE_DEVICES={visible}", *wanted)
