"""A node whose container engines call a hook as NVIDIA's: it writes device rules behind systemd's and runc's back."""

from __future__ import annotations

import json
from pathlib import Path

from tests.lab.containers import Engine
from tests.lab.devices import CTL, GPU0, UVM
from tests.lab.node import ROOT, Node

DEVICES = (GPU0, CTL, UVM)
"""What the hook gives a container."""

HOOK = "/root/nvidia-hook"
_LOG = "/root/nvidia-hook.log"
_RUNTIME = "/root/nvidia-runtime"
_ANNOTATION = "lab.gpuguard.hook"

# As libnvidia-container does: of the container's first process, before its program starts. Its arguments: the seconds
# between two devices, and other devices than these, as major:minor; "" is none. The node's own Python: this machine's
# may need a newer C library than the node has.
_HOOK_TEXT = f"""\
#!/usr/bin/python3 -I
import json, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
sys.dont_write_bytecode = True
from tests.lab import hook
from tests.lab.devices import Device
groups = pathlib.Path("/proc", str(json.load(sys.stdin)["pid"]), "cgroup").read_text().splitlines()
found = {{controllers: group for _, controllers, group in (line.split(":", 2) for line in groups)}}
v1 = pathlib.Path("/sys/fs/cgroup/devices")
cgroup = v1 / found["devices"][1:] if v1.exists() else v1.parent / found[""][1:]
others = [Device("", *map(int, number.split(":"))) for number in sys.argv[2:] if number]
for device in others if sys.argv[2:] else {DEVICES!r}:
    hook.allow(cgroup, device)
    time.sleep(float(sys.argv[1]))
with open("{_LOG}", "a") as log:
    log.write(f"{{cgroup.name}} {{time.time()}}\\n")
"""

# As nvidia-container-runtime does in its legacy mode: it adds the hook to the bundle and becomes runc.
_RUNTIME_TEXT = f"""\
#!/usr/bin/python3 -I
import json, os, sys
if "create" in sys.argv:
    path = os.path.join(sys.argv[sys.argv.index("--bundle") + 1], "config.json")
    with open(path) as file:
        spec = json.load(file)
    spec.setdefault("hooks", {{}}).setdefault("prestart", []).append({{"path": "{HOOK}", "args": ["hook", "@PAUSE@"]}})
    with open(path, "w") as file:
        json.dump(spec, file)
os.execvp("runc", ["runc", *sys.argv[1:]])
"""


def install(node: Node, pause: float = 0.0) -> None:
    """Give the node the hook and both engines the way to it. Call it before the first container.

    It waits `pause` seconds after each device; another call changes that.
    """
    for path, text in ((HOOK, _HOOK_TEXT), (_RUNTIME, _RUNTIME_TEXT.replace("@PAUSE@", str(pause)))):
        program = node.path(path)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
    when = {"annotations": {f"^{_ANNOTATION}$": ".*"}}
    hook = {
        "version": "1.0.0",
        "hook": {"path": HOOK, "args": ["hook", str(pause)]},
        "when": when,
        "stages": ["prestart"],
    }
    _write(node.path("/usr/share/containers/oci/hooks.d/nvidia.json"), hook)
    _write(node.path("/etc/docker/daemon.json"), {"runtimes": {"nvidia": {"path": _RUNTIME}}})


def ends(node: Node) -> dict[str, float]:
    """Return when the hook had done its work, by the scope, in seconds since the epoch."""
    lines = node.path(_LOG).read_text(encoding="utf-8").splitlines()
    return {scope: float(end) for scope, _, end in (line.partition(" ") for line in lines)}


def options(engine: Engine) -> tuple[str, ...]:
    """Return what makes the engine's `run` call the hook."""
    return ("--runtime=nvidia",) if engine.program == "docker" else (f"--annotation={_ANNOTATION}=yes",)


def _write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
