"""What containerd keeps of a container, written by the test for a bare scope."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.e2e.attacks.arena import Arena, Suspect
from tests.lab.devices import Device

PREFIX = "cri-containerd"
_TASKS = "/run/containerd/io.containerd.runtime.v2.task/k8s.io"


def identity(scope: str) -> str:
    """Return the id of a scope's container."""
    return scope[len(PREFIX) + 1 : -len(".scope")]


def of(scope: str, devices: Sequence[Device]) -> dict[str, Any]:
    """Return a specification that gives a scope these devices."""
    rules = [{"allow": False, "access": "rwm"}]
    rules += [{"allow": True, "type": "c", "major": d.major, "minor": d.minor, "access": "rwm"} for d in devices]
    return {
        "ociVersion": "1.0.2",
        "process": {"args": ["sleep"], "env": ["NVIDIA_VISIBLE_DEVICES=all"], "capabilities": {"bounding": []}},
        "linux": {"cgroupsPath": f"system.slice:{PREFIX}:{identity(scope)}", "resources": {"devices": rules}},
    }


def place(arena: Arena, suspect: Suspect, specification: dict[str, Any]) -> Path:
    """Write a specification and the first process of a scope where containerd has them; return the directory."""
    directory = prepare(arena, suspect.scope, specification)
    note(directory, suspect)
    return directory


def prepare(arena: Arena, scope: str, specification: dict[str, Any]) -> Path:
    """Write a specification where containerd has it before the start, and return the directory."""
    directory = arena.node.path(f"{_TASKS}/{identity(scope)}")
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(specification), encoding="utf-8")
    return directory


def note(directory: Path, suspect: Suspect) -> None:
    """Write down the first process of a scope that runs."""
    pid = (suspect.cgroup / "cgroup.procs").read_text(encoding="ascii").split()[0]
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    [inner] = [line.split()[-1] for line in lines if line.startswith("NSpid:")]
    (directory / "init.pid").write_text(inner, encoding="ascii")
