"""The program /usr/bin/nvidia-container-runtime-hook of a node: what it and libnvidia-container do to a container.

It runs with the node's own Python, which must not need more than the standard library.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Union

from tests.lab import hook
from tests.lab.devices import Device
from tests.lab.nvidia import request

CONFIG = Path("/etc/nvidia-container-runtime/config.toml")

# linux/mount.h, linux/sched.h.
_RDONLY, _NOSUID, _NOEXEC, _REMOUNT, _BIND = 0x1, 0x2, 0x8, 0x20, 0x1000
_NEWNS = 0x20000

_VALUES = {"true": True, "false": False}
_LINE = re.compile(r'([\w-]+) *= *(?:"([^"]*)"|(\w+))')

_libc = ctypes.CDLL(None, use_errno=True)


def settings(text: str) -> dict[str, Union[str, bool]]:
    """Read a config.toml of strings and booleans; Python has a parser from 3.11 on."""
    found: dict[str, Union[str, bool]] = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("["):
            table = line.strip("[]") + "."
        match = _LINE.fullmatch(line.strip())
        if match is not None:
            found[table + match[1]] = match[2] if match[2] is not None else _VALUES[match[3]]
    return found


def main() -> None:
    """Do as `nvidia-container-runtime-hook prestart`, with the container's state on standard input."""
    if sys.argv[1:] != ["prestart"]:  # poststart and poststop do nothing
        return
    state: dict[str, Any] = json.load(sys.stdin)
    bundle = Path(state["bundle"])
    spec = json.loads((bundle / "config.json").read_text(encoding="utf-8"))
    config = settings(CONFIG.read_text(encoding="utf-8") if CONFIG.exists() else "")
    try:
        nodes = request.nodes(spec, config, Path("/proc"))
    except LookupError as error:
        raise SystemExit(f"nvidia-container-cli: {error}") from error
    if nodes is None:
        return
    pause = float(str(config.get("lab.pause", "0")))
    bind(state["pid"], bundle / spec["root"]["path"], nodes)
    if config.get("nvidia-container-cli.no-cgroups"):
        return
    cgroup = _cgroup(state["pid"])
    for node in nodes:
        number = Path(node).stat().st_rdev
        hook.allow(cgroup, Device(node, os.major(number), os.minor(number)))
        time.sleep(pause)


def _cgroup(pid: int) -> Path:
    groups = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8").splitlines()
    found = {controllers: group for _, controllers, group in (line.split(":", 2) for line in groups)}
    v1 = Path("/sys/fs/cgroup/devices")
    return v1 / found["devices"][1:] if v1.exists() else v1.parent / found[""][1:]


def bind(pid: int, root: Path, nodes: Sequence[str]) -> None:
    """Mount the host's nodes over empty files in a container that has not changed its root yet. Raises OSError."""
    space = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    child = os.fork()
    if child == 0:
        try:
            _checked(_libc.setns(space, _NEWNS), "setns")
            for node in nodes:
                _bind(node, root)
        except OSError as error:
            sys.stderr.write(f"nvidia-container-cli: mount error: {error}\n")
            os._exit(1)
        os._exit(0)
    os.close(space)
    if os.waitpid(child, 0)[1]:
        raise SystemExit(1)


def _bind(node: str, root: Path) -> None:
    if not Path(node).is_char_device():
        raise OSError(f"{node} is no device")
    target = root / node[1:]
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    _mount(node, target, _BIND)
    _mount("", target, _BIND | _REMOUNT | _RDONLY | _NOSUID | _NOEXEC)


def _mount(source: str, target: Path, flags: int) -> None:
    _checked(_libc.mount(source.encode(), os.fsencode(target), None, ctypes.c_ulong(flags), None), str(target))


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
