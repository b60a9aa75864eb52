"""Make tests/model/data/programs anew: the device programs of real nodes, `python -m tests.lab.dump [SUITE…]`.

Each situation is had twice, on a node of either cgroup mode: v2 gives the programs, and v1, from the same systemd and
the same runc, the kernel's own list of the rules that they stand for.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, NamedTuple, Union

from gpuguard.kernel import bpf
from tests.lab.containers import Docker, Podman
from tests.lab.devices import CTL, GPU0, UVM
from tests.lab.distribution import DISTRIBUTIONS, root
from tests.lab.errors import LabError
from tests.lab.hook import attached
from tests.lab.node import ROOT, Node
from tests.lab.scope import BASICS

DATA = ROOT / "tests/model/data/programs"
DEVICES = (GPU0, CTL, UVM)

Found = dict[str, Any]
Look = Callable[[Path], object]
Start = Callable[[Node], tuple[str, Path]]


class Situation(NamedTuple):
    """A way to a scope: how to say it, the packages that have a part in it, and how to start the scope."""

    name: str
    text: str
    packages: tuple[str, ...]
    start: Start


def _scope(policy: str, *entries: str) -> Start:
    def start(node: Node) -> tuple[str, Path]:
        scope = node.scope(device_allow=entries, policy=policy)
        return scope.name, scope.cgroup

    return start


def _container(engine: type[Union[Docker, Podman]], *args: str) -> Start:
    def start(node: Node) -> tuple[str, Path]:
        container = engine(node).run("trainer", DEVICES, args)
        return container.scope, container.cgroup

    return start


_GIVEN = " ".join(f"--device={device.path}" for device in DEVICES)
_MORE = ("--device-cgroup-rule=c 189:* rw", "--device-cgroup-rule=c 81:3 r")
SITUATIONS = (
    Situation(
        "strict",
        "a scope with DevicePolicy=strict and what a container gets",
        ("systemd",),
        _scope("strict", *BASICS, "/dev/char/195:0 rw", "/dev/char/195:255 r", "char-input m", "block-loop rm"),
    ),
    Situation("closed", "a scope with DevicePolicy=closed", ("systemd",), _scope("closed", "/dev/char/195:0 rwm")),
    Situation("docker", f"docker run {_GIVEN}", ("systemd", "runc", "docker.io"), _container(Docker)),
    Situation("podman", f"podman run {_GIVEN}", ("systemd", "runc", "podman"), _container(Podman)),
    Situation(
        "docker-rules",
        f"docker run {_GIVEN} {' '.join(_MORE)}",
        ("systemd", "runc", "docker.io"),
        _container(Docker, *_MORE),
    ),
)


def programs(cgroup: Path) -> dict[int, bpf.DeviceProgram]:
    """Return the programs on a cgroup itself, by id."""
    return {number: bpf.program(number) for number in attached(cgroup)}


def rules(cgroup: Path) -> list[str]:
    """Return the kernel's list of a cgroup on v1, sorted."""
    return sorted((cgroup / "devices.list").read_text(encoding="ascii").splitlines())


def twice(node: Node, situation: Situation, look: Look) -> Iterator[object]:
    """Start the scope and look at it, have systemd rewrite its rules, and look again."""
    scope, cgroup = situation.start(node)
    yield look(cgroup)
    node.run(["systemctl", "set-property", "--runtime", scope, "TasksMax=1000"])
    yield look(cgroup)


def dump(suite: str, situation: Situation) -> Found:
    """Return what the file of one situation is to hold."""
    with Node.boot("v1", root(suite)) as node:
        versions = {name: _version(node, name) for name in situation.packages}
        by_runc, by_systemd = twice(node, situation, rules)
    with Node.boot("v2", root(suite)) as node:
        start, rewritten = twice(node, situation, programs)
    assert isinstance(start, dict)
    assert isinstance(rewritten, dict)
    found = []
    for when, program in [
        *(("at the start", program) for program in start.values()),
        *(("rewritten by systemd", program) for number, program in rewritten.items() if number not in start),
    ]:
        systemds = program.gpl_compatible  # by its licence; runc's is "Apache"
        lines = textwrap.wrap(" ".join(textwrap.wrap(program.code.hex(), 16)), 16 * 6 + 5)
        found.append(
            {
                "by": "systemd" if systemds else "runc",
                "when": when,
                "name": program.name,
                "gpl_compatible": program.gpl_compatible,
                "rules": by_systemd if systemds else by_runc,
                "code": lines,
            }
        )
    return {"situation": situation.text, "versions": versions, "programs": found}


def _version(node: Node, package: str) -> str:
    return node.run(["dpkg-query", "--show", "--showformat=${Version}", package]).stdout


def main() -> int:
    """Dump those that are asked for, or all."""
    DATA.mkdir(parents=True, exist_ok=True)
    try:
        for suite in sys.argv[1:] or DISTRIBUTIONS:
            for situation in SITUATIONS:
                file = DATA / f"{suite}-{situation.name}.json"
                file.write_text(json.dumps(dump(suite, situation), indent=1) + "\n", encoding="ascii")
                print(file.relative_to(ROOT))
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
