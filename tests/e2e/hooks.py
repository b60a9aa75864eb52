"""A node whose container engines call a hook as NVIDIA's: it writes device rules behind systemd's and runc's back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.containers import Engine
from tests.lab.devices import CTL, GPU0, UVM
from tests.lab.node import Node

DEVICES = (GPU0, CTL, UVM)
"""What the hook gives a container."""

_HOOK = "/root/nvidia-hook"
_RUNTIME = "/root/nvidia-runtime"
_ANNOTATION = "lab.gpuguard.hook"

# As libnvidia-container does on cgroup v1 (nvc_cgroup.c): of the container's first process, before its program starts.
_HOOK_TEXT = f"""\
#!/bin/sh
read -r state
pid=${{state##*\\"pid\\":}}
pid=${{pid%%[,\\}}]*}}
while IFS=: read -r _ controllers group; do
    [ "$controllers" = devices ] || continue
    for rule in {" ".join(f"'{device.rule} rw'" for device in DEVICES)}; do
        echo "$rule" >"/sys/fs/cgroup/devices$group/devices.allow"
    done
done <"/proc/$pid/cgroup"
"""

# As nvidia-container-runtime does in its legacy mode: it adds the hook to the bundle and becomes runc. The node's own
# Python: this machine's may need a newer C library than the node has.
_RUNTIME_TEXT = f"""\
#!/usr/bin/python3 -I
import json, os, sys
if "create" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    spec.setdefault("hooks", {{}}).setdefault("prestart", []).append({{"path": "{_HOOK}"}})
    with open(path, "w") as file:
        json.dump(spec, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""


def install(node: Node) -> None:
    """Give the node the hook and both engines the way to it. Call it before the first container."""
    for path, text in ((_HOOK, _HOOK_TEXT), (_RUNTIME, _RUNTIME_TEXT)):
        program = node.path(path)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    when = {"annotations": {f"^{_ANNOTATION}$": ".*"}}
    hook = {"version": "1.0.0", "hook": {"path": _HOOK}, "when": when, "stages": ["prestart"]}
    _write(node.path("/usr/share/containers/oci/hooks.d/nvidia.json"), hook)
    _write(node.path("/etc/docker/daemon.json"), {"runtimes": {"nvidia": {"path": _RUNTIME}}})


def options(engine: Engine) -> tuple[str, ...]:
    """Return what makes the engine's `run` call the hook."""
    return ("--runtime=nvidia",) if engine.program == "docker" else (f"--annotation={_ANNOTATION}=yes",)


def _write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
