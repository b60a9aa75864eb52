"""A node with an enforcing gpuguard and an honest container; who comes in to attack; and what must hold after it."""

from __future__ import annotations

import errno
import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from gpuguard.model.ruleset import RuleSet
from tests.e2e import gate
from tests.e2e.gpuguard import RUN, Gpuguard
from tests.lab import hook
from tests.lab.containers import Container, Engine
from tests.lab.devices import CTL, GPU0, GPU1, UVM, Device
from tests.lab.node import Node
from tests.lab.poll import until
from tests.lab.prober import Prober
from tests.lab.scope import Scope, random_name

ALL = (GPU0, GPU1, CTL, UVM)
ROOT = ("--cap-add=MKNOD",)
"""Root in the container, who can make nodes."""
ADMIN = (*ROOT, "--cap-add=SYS_ADMIN", "--security-opt=seccomp=unconfined", "--security-opt=apparmor=unconfined")
"""Root in the container, who can mount, and on cgroup v1 write device rules."""
TOOLS = ("--volume=/usr:/usr:ro", "--volume=/lib:/lib:ro", "--volume=/lib64:/lib64:ro")
"""The node's own programs, for attacks that busybox is not enough for."""

PACE = 0.2  # seconds
QUICK = {"poll_interval": f"{PACE * 1000:.0f}ms", "settle": "300ms"}
USUAL = 20.0  # seconds; some milliseconds, and the prober's own start, on a machine that is busy
_GUARDED = {device.major for device in ALL}
_SCRIPTS = "/root/attacks"
_NODES = "/run/lab-probe"
_OPENER = Path(__file__).with_name("opener.py")


@dataclass(frozen=True)
class Suspect:
    """One attacker. `given` is what its runtime gave it; `before` was in force then, `declared` known to systemd."""

    scope: str
    cgroup: Path
    given: tuple[Device, ...]
    before: RuleSet
    declared: frozenset[str]
    container: Optional[Container] = None

    @property
    def pid(self) -> int:
        """Its first process, by its number in the node."""
        assert self.container is not None
        return self.container.pid

    def sh(self, script: str) -> str:
        """Run a script in the container, and return what it printed; it must succeed."""
        assert self.container is not None
        return self.container.exec(["/bin/sh", "-ec", f"PATH=/bin; {script}"], check=True).stdout

    def python(self, program: str, *argv: str) -> str:
        """Run a program of Python in a container that has the tools; it must succeed."""
        assert self.container is not None
        return self.container.exec(["/usr/bin/python3", "-c", program, *argv], check=True).stdout

    def opens(self, *paths: str) -> list[str]:
        """Open nodes from inside, and return what was said of each."""
        quoted = " ".join(map(shlex.quote, paths))
        said = self.sh(f'for node in {quoted}; do cat "$node" 2>&1 || true; done').splitlines()
        return [line.rpartition(": ")[2] for line in said]


DENIED = "Operation not permitted"
ALLOWED = "No such device or address"


class Arena:
    """Everything of one module. `honest` has a GPU that nobody else was given."""

    def __init__(self, node: Node, guard: Gpuguard, engine: Engine, prober: Prober) -> None:
        self.node = node
        self.guard = guard
        self.engine = engine
        self.prober = prober
        self.honest = engine.run("honest", [GPU1], ROOT)
        self._scopes: list[Scope] = []
        self._containers: list[Container] = []
        self._heard = 0
        self._number = 0

    def enter(
        self, args: Sequence[str] = ROOT, given: Sequence[Device] = (GPU0,), *, init: str = "", wait: bool = True
    ) -> Suspect:
        """Start a container. `init` is shell that its first process runs first; `wait`: until it is protected."""
        self._number += 1
        name = f"attacker-{self._number}"
        if init:
            script = self.node.path(f"{_SCRIPTS}/{name}/init")
            script.parent.mkdir(parents=True)
            script.write_text(f'#!/bin/sh\n{init}\nexec "$@"\n', encoding="utf-8")
            script.chmod(0o755)
            args = (*args, f"--volume={_SCRIPTS}/{name}:/attack:ro", "--entrypoint=/attack/init")
        container = self.engine.run(name, given, args)
        self._containers.append(container)
        # Not where its first process is by now: it may have gone elsewhere.
        scope = f"{self.engine.scope_prefix}-{container.id}.scope"
        return self._known(scope, self.node.cgroup(scope), given, container, wait=wait)

    def given(self, suspect: Suspect, devices: Sequence[Device]) -> Suspect:
        """Return a suspect whose hook has given it these devices, when gpuguard has declared them."""
        return self._known(suspect.scope, suspect.cgroup, devices, suspect.container, wait=True)

    def scope(self, given: Sequence[Device] = (GPU0,), name: Optional[str] = None, *, wait: bool = True) -> Suspect:
        """Start a bare scope, with its devices written as a hook does."""
        self._scopes.append(self.node.scope(name or random_name()))
        for device in given:
            hook.allow(self._scopes[-1].cgroup, device)
        return self._known(self._scopes[-1].name, self._scopes[-1].cgroup, given, wait=wait)

    def end(self, suspect: Suspect) -> None:
        """End a bare scope."""
        [scope] = [scope for scope in self._scopes if scope.name == suspect.scope]
        self._scopes.remove(scope)
        scope.stop()

    def _known(
        self, scope: str, cgroup: Path, given: Sequence[Device], container: Optional[Container] = None, *, wait: bool
    ) -> Suspect:
        others = _others(cgroup)
        if given and wait:
            self.guard.await_state(scope, "protected")
        declared = frozenset(gate.declared(self.node, scope))
        # On cgroup v1 the first look may have been in the middle of a rewrite: systemd has answered since.
        before = RuleSet.of(*(f"{device.rule} rwm" for device in given), *others, *_others(cgroup))
        return Suspect(scope, cgroup, tuple(given), before, declared, container)

    def withstand(self, *suspects: Suspect, made: Sequence[Device] = (), heals: bool = True) -> None:
        """Have gpuguard act in every way there is, also from a cold start, and assert that nobody has won by it.

        `made`: what an attacker has put into force itself: it may be there, and is neither learnt nor declared.
        `heals`: the attackers' own devices come back, too, when they are lost.
        """
        self.assert_nothing_gained(*suspects, made=made)
        self._provoke(suspects, made, heals=heals)
        self.restart_cold()
        if heals:
            for suspect in suspects:
                if suspect.given:
                    self.guard.await_state(suspect.scope, "protected")
        self.guard.await_rounds(3)
        self._provoke(suspects, made, heals=heals)
        self.assert_nothing_gained(*suspects, made=made)
        self.assert_no_fault()

    def restart_cold(self, program: Sequence[str] = Gpuguard.program) -> None:
        """Start the daemon anew, without anything that it had learnt."""
        assert self.guard.daemon.stop() == 0
        self.node.run(["rm", "-rf", f"{RUN}/ledger"])
        self.guard.program = program
        self.guard.start()
        self.guard.await_state(self.honest.scope, "protected")

    def _provoke(self, suspects: Sequence[Suspect], made: Sequence[Device], *, heals: bool) -> None:
        self.node.run(["systemctl", "daemon-reload"])
        self.guard.repair()
        self.guard.await_rounds()
        self.assert_nothing_gained(*suspects, made=made)
        for suspect in suspects:
            for device in suspect.given[:1]:
                gate.take_away(self.node, suspect.scope, device)
        self.assert_honest_heals()
        if heals:
            own = {suspect.cgroup: suspect.given for suspect in suspects if suspect.given}
            until(lambda: not any(self.denied(own).values()), USUAL, "the attackers' own devices")
        self.guard.repair()

    def assert_honest_heals(self) -> None:
        """Assert that the honest container gets back what it loses, in its usual time."""
        gate.take_away(self.node, self.honest.scope, GPU1)
        assert self.prober.denied(self.honest.cgroup, [GPU1], USUAL) == []

    def denied(self, groups: Mapping[Path, Sequence[Device]]) -> dict[Path, list[Device]]:
        """Open devices from inside control groups, and return those that are denied."""
        directory = self.node.path(_NODES)
        for device in {device for devices in groups.values() for device in devices}:
            if not (directory / _number(device)).exists():
                directory.mkdir(exist_ok=True)
                Device(f"/{_number(device)}", device.major, device.minor).make(directory)
        asked = {str(group): list(map(_number, devices)) for group, devices in groups.items()}
        enter = ["nsenter", f"--target={self.node.init}", "--pid", "--"]
        program = [*enter, sys.executable, "-I", str(_OPENER), str(directory)]
        done = subprocess.run(program, input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=60)
        answers = json.loads(done.stdout)
        assert {number for numbers in answers.values() for number in numbers} <= {0, errno.ENXIO, errno.EPERM}, answers
        return {
            group: [device for device, answer in zip(devices, answers[str(group)]) if answer == errno.EPERM]
            for group, devices in groups.items()
        }

    def assert_denied(self, *groups: Path, devices: Sequence[Device] = (GPU1,)) -> None:
        """Assert that devices cannot be opened from inside control groups."""
        asked = {group: list(devices) for group in groups}
        assert self.denied(asked) == asked

    def assert_nothing_gained(self, *suspects: Suspect, made: Sequence[Device] = ()) -> None:
        """Assert that the kernel, systemd and the ledger have nothing of an attacker's but what it was given."""
        declared = self._declared(suspects) if suspects else {}
        for suspect in suspects:
            own = (f"{device.rule} rwm" for device in made)
            now = RuleSet.of(*gate.rules(suspect.cgroup))
            assert not now.unrestricted
            more = RuleSet(suspect.before.rules | RuleSet.of(*own).rules).missing(now)
            assert not more, f"in force: {more}"
            new = declared[suspect.scope] - suspect.declared
            new = {entry for entry in new if _guarded(entry) and not _of(entry, suspect.given)}
            assert not new, f"declared: {new}"
            learnt = self.learnt(suspect) - {device.rule for device in suspect.given}
            assert not learnt, f"learnt: {learnt}"
        foreign = {s.cgroup: [device for device in ALL if device not in (*s.given, *made)] for s in suspects}
        assert self.denied(foreign) == foreign

    def _declared(self, suspects: Sequence[Suspect]) -> dict[str, set[str]]:
        """Return what systemd has been told of each; one of which it has never heard has nothing."""
        names = [suspect.scope for suspect in suspects]
        blocks = self.node.run(["systemctl", "show", "--property=Id,DeviceAllow", "--", *names]).stdout.split("\n\n")
        found = {}
        for block in blocks:
            lines = block.splitlines()
            [name] = [line.partition("=")[2] for line in lines if line.startswith("Id=")]
            found[name] = {
                line.partition("=")[2] for line in lines if line.startswith("DeviceAllow=") and line != "DeviceAllow="
            }
        return found

    def learnt(self, suspect: Suspect) -> set[str]:
        """Return the devices that the ledger has for a suspect."""
        text, _ = self.guard.ledger().get(f"{suspect.cgroup.stat().st_ino}.json", ('{"rules": []}', 0))
        return {rule.rpartition(" ")[0] for rule in json.loads(text)["rules"]}

    def assert_no_fault(self) -> None:
        """Assert that gpuguard has told of no fault of its own since the last time."""
        output = self.guard.output()
        new, self._heard = output[self._heard :], len(output)
        for word in ("internal error", "Traceback"):
            assert word not in new, new[new.index(word) - 200 :][:3000]

    def leave(self) -> None:
        """End all but the honest container."""
        for scope in self._scopes:
            scope.stop()
        self._scopes.clear()
        for container in self._containers:
            container.stop()
        self._containers.clear()


def _others(cgroup: Path) -> list[str]:
    """Return what is in force and no GPU: it is nobody's subject here."""
    return [rule for rule in gate.rules(cgroup) if not any(f" {major}:" in rule for major in _GUARDED)]


def _number(device: Device) -> str:
    return f"{device.major}:{device.minor}"


def _of(entry: str, devices: Sequence[Device]) -> bool:
    return any(entry.startswith((f"/dev/char/{d.major}:{d.minor} ", f"{d.path} ")) for d in devices)


def _guarded(entry: str) -> bool:
    """Whether a DeviceAllow entry can open a GPU."""
    path, _, access = entry.rpartition(" ")
    if path.startswith("/dev/char/"):
        return int(path.rpartition("/")[2].partition(":")[0]) in _GUARDED
    group = path.startswith("char-") and path not in {"char-pts", "char-ptmx"} and access != "m"
    return group or path.startswith("/dev/nvidia")
