"""`gpuguard status`: every GPU container, the worst first."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Optional

from gpuguard.cli import codes, colour, table
from gpuguard.cli.screen import excerpt
from gpuguard.cli.settings import load
from gpuguard.cli.table import Cell, Names
from gpuguard.config import Settings
from gpuguard.errors import ConfigError
from gpuguard.model.container_name import short_id
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus, DeviceStatus, NodeStatus, unmanaged

_WATCH_SECONDS = 2
_MOST_NAMES = 5
# Monitoring systems cut a long line; what it has then lost is the performance data.
_LONGEST_NAME = 64
_CLEAR_SCREEN = "\x1b[H\x1b[2J"
_STOPPED = """\
The daemon is not running, so nobody gives back what gets lost: `systemctl start gpuguard`
(`gpuguard repair` gives back what is lost now, once)."""
_UNKNOWN = "Whether the daemon is at work cannot be told: ask as root, and see `systemctl status gpuguard`."
_OBSERVES = "The daemon only observes ([guard] mode, or --observe-only): nobody gives back what gets lost."
_NOT_TAKEN = "The daemon goes on with the settings from before; `gpuguard config check` says whether the file is good."
_HEADER = ("STATE", "CONTAINER", "ID", "RUNTIME", "NOW", "AFTER RELOAD", "DEVICES")
# What needs a person most comes first.
ORDER = (
    State.LOST,
    State.PARTIAL,
    State.STALE,
    State.OPAQUE,
    State.AT_RISK,
    State.SETTLING,
    State.PROTECTED,
    State.UNRESTRICTED,
)
_COLOURS = {
    State.LOST: colour.RED,
    State.PARTIAL: colour.RED,
    State.STALE: colour.RED,
    State.OPAQUE: colour.YELLOW,
    State.AT_RISK: colour.YELLOW,
    State.PROTECTED: colour.GREEN,
}
_ANSWERS = {
    True: Cell("allowed", colour.GREEN),
    False: Cell("DENIED", colour.RED),
    None: Cell("unknown", colour.YELLOW),
}
# While a container starts it is not declared yet: that says nothing of the reload to come.
_TOO_EARLY = Cell("too early")


def run(args: argparse.Namespace) -> int:
    """Show the node once, or again and again until Ctrl-C."""
    settings, fault = load(args.config)
    if args.json:
        print(json.dumps(document(look(settings, fault)), indent=2))
        return codes.OK
    terminal = sys.stdout.isatty()
    while True:
        text = people(
            look(settings, fault),
            width=shutil.get_terminal_size().columns if terminal else None,
            colours=colour.wanted(sys.stdout),
            everything=args.all,
        )
        print(
            _CLEAR_SCREEN + excerpt(text, *shutil.get_terminal_size()) if args.watch and terminal else text,
            flush=True,
        )
        if not args.watch:
            return codes.OK
        time.sleep(_WATCH_SECONDS)


def look(settings: Settings, fault: Optional[ConfigError] = None) -> NodeStatus:
    """Look at the node once; `fault` is what is wrong with the file of the settings. Raises GpuguardError."""
    from gpuguard.guard import once  # noqa: PLC0415 - its libraries are slow to import, and rendering needs none

    return asyncio.run(once.look(settings, fault))


def document(node: NodeStatus) -> dict[str, object]:
    """Return what --json prints."""
    return {
        "version": 1,
        "node": {
            "cgroup": node.cgroup,
            "systemd": node.systemd,
            "mode": node.mode,
            "daemon": node.daemon,
            "trouble": node.trouble,
        },
        "containers": [_container(container) for container in node.containers],
    }


def people(node: NodeStatus, *, width: Optional[int] = None, colours: bool = False, everything: bool = False) -> str:
    """Return the text for people; `everything` includes the containers that have no device filter."""
    shown = [c for c in node.containers if everything or c.state is not State.UNRESTRICTED]
    shown.sort(key=lambda c: (ORDER.index(c.state), natural(display_name(c)), c.id))
    systemd = "systemd does not answer" if node.systemd is None else f"systemd {node.systemd}"
    lines = [f"cgroup {node.cgroup}, {systemd}, mode {node.mode}, daemon {node.daemon}"]
    if shown:
        rows = [row for container in shown for row in _rows(container)]
        lines += ["", *table.render(_HEADER, rows, width, colours=colours, names=Names(_HEADER.index("CONTAINER"))), ""]
    lines += _remarks(shown)
    hidden = len(node.containers) - len(shown)
    if hidden:
        lines.append(f"{hidden} without any device filter, with nothing to guard: --all shows them")
    lines.append(summary(node) if node.containers else "no GPU container on this node")
    lines += _about_the_guard(node)
    return "\n".join(lines)


def _about_the_guard(node: NodeStatus) -> Iterator[str]:
    if node.daemon == "stopped":
        yield _STOPPED
    elif node.daemon != "running":
        yield _UNKNOWN
    elif node.mode == "observe":
        yield _OBSERVES
    if node.trouble is not None:
        yield from (table.printable(line) for line in node.trouble.splitlines())
        if node.daemon == "running":
            yield _NOT_TAKEN


def summary(node: NodeStatus) -> str:
    """Return the number of containers in each state, the worst first: "1 lost, 3 protected"."""
    states = [container.state for container in node.containers]
    return ", ".join(f"{states.count(state)} {state.value}" for state in ORDER if state in states)


def display_name(container: ContainerStatus) -> str:
    """Return what people call the container: namespace/pod/name, its name, or its id."""
    return container.full_name or short_id(container.id)


def brief_name(container: ContainerStatus) -> str:
    """Return the same for a line that has several; a very long name gives way to the id."""
    name = display_name(container)
    return name if len(name) <= _LONGEST_NAME else short_id(container.id)


def state_cell(state: State) -> Cell:
    """Return a state in its colour."""
    return Cell(state.value, _COLOURS.get(state, ""))


def _container(container: ContainerStatus) -> dict[str, object]:
    return {
        "scope": container.scope,
        "cgroup": container.cgroup,
        "id": container.id,
        "runtime": container.runtime,
        "name": container.name,
        "namespace": container.namespace,
        "pod": container.pod,
        "state": container.state.value,
        "managed": container.managed,
        "devices": [
            {
                "device": device.rule.device,
                "node": device.node,
                "access": device.rule.access.letters(),
                "entitled_by": device.entitled_by,
                "effective": device.effective,
                "declared": device.declared,
            }
            for device in container.devices
        ],
        "reason": container.reason,
        "excess": [_rule(rule) for rule in container.excess],
        "released": [_rule(rule) for rule in container.released],
    }


def _rule(rule: Rule) -> dict[str, str]:
    return {"device": rule.device, "access": rule.access.letters()}


def _rows(container: ContainerStatus) -> Iterator[list[Cell]]:
    """Yield a row for each group of devices that stand alike; the container is named in the first."""
    groups: dict[tuple[Optional[bool], Optional[bool]], list[str]] = {}
    for device in container.devices:
        kept = device.declared and not device.blocked if container.managed else device.effective
        groups.setdefault((device.effective, kept), []).append(_device_name(device))
    head = [
        state_cell(container.state),
        Cell(container.full_name or table.NONE),
        Cell(short_id(container.id)),
        Cell(container.runtime),
    ]
    if not groups:
        yield [*head, Cell(table.NONE), Cell(table.NONE), Cell(table.NONE)]
    for (effective, kept), names in groups.items():
        after = _TOO_EARLY if container.state is State.SETTLING and not kept else _ANSWERS[kept]
        yield [*head, _ANSWERS[effective], after, Cell(" ".join(names))]
        head = [Cell("")] * len(head)


def _device_name(device: DeviceStatus) -> str:
    return device.node.removeprefix("/dev/") if device.node else device.rule.device.replace(" ", "")


def _remarks(containers: list[ContainerStatus]) -> list[str]:
    """Say what does not fit into a column: why, and what a container may use that is not given back to it."""
    names: dict[str, list[str]] = {}
    calls = Counter(map(brief_name, containers))
    for container in containers:
        name = brief_name(container)
        called = name if calls[name] == 1 else f"{name} ({short_id(container.id)})"
        for remark in _about(container):
            names.setdefault(remark, []).append(called)
    remarks = [table.printable(f"{named(those)}: {remark}") for remark, those in names.items()]
    remarks += map(table.printable, unmanaged(containers))
    return [*remarks, ""] if remarks else []


def _about(container: ContainerStatus) -> Iterator[str]:
    if container.reason and (container.managed or container.state is not State.PROTECTED):
        yield in_short(container.reason, container.cgroup)
    if container.excess:
        yield f"may also use what it was never given: {', '.join(map(str, container.excess))}"
    if container.released:
        released = ", ".join(map(str, container.released))
        yield f"may still use what was released, until somebody takes it away: {released}"


def named(names: list[str]) -> str:
    """Return the names in one line, of many the first: "a, b, c, d, e and 4 more"."""
    more = len(names) - _MOST_NAMES
    return ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def natural(name: str) -> list[object]:
    """Return the key by which people sort names: train-9 before train-10."""
    return [int(part) if at % 2 else part for at, part in enumerate(re.split("([0-9]{1,18})", name))]


def in_short(reason: str, cgroup: str) -> str:
    """Return a reason without the path of the container's own control group, which is long and told elsewhere."""
    return re.sub(rf"(?<![^ ]){re.escape(cgroup)}(?![^ ,:;])", "its own group", reason)
