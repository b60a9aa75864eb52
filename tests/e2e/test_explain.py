"""`gpuguard explain` on a real node with cgroup v2: which program on which level denies, and what a reload does."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from gpuguard.model.rule import Rule
from gpuguard.model.ruleset import RuleSet
from tests.e2e import gate
from tests.e2e.conftest import Launch
from tests.e2e.gpuguard import Gpuguard
from tests.lab import bpf
from tests.lab import device_programs as shapes
from tests.lab.node import Node
from tests.lab.scope import BASICS, Scope
from tests.model.looks import rules

pytestmark = pytest.mark.cgroup("v2")

GPU, ODD = "c 195:0 rw", "c *:77 rw"
STANDARD = ("c 1:3 rwm", "c 1:5 rwm", "c 1:7 rwm", "c 1:8 rwm", "c 1:9 rwm", "c 5:0 rwm", "c 136:* rwm")
ENTRY = "/dev/char/195:0 rw"


class Stage:
    """Scopes with programs as runc leaves them."""

    def __init__(self, node: Node, stack: ExitStack) -> None:
        self._node = node
        self._stack = stack

    def scope(self, *lines: str, declared: tuple[str, ...] = ()) -> Scope:
        """Start a scope with the runtime's program for these rules, in the place of systemd's as runc does it."""
        scope = self._node.scope(device_allow=[*BASICS, *declared])
        self._stack.callback(scope.stop)
        for number in gate.programs(scope.cgroup):
            with bpf.opened(number) as old:
                bpf.detach(scope.cgroup, old)
        runtime = self._stack.enter_context(bpf.program(shapes.runc(rules(*STANDARD, *lines))))
        bpf.attach(scope.cgroup, runtime.fd)
        return scope

    def block(self, scope: Scope) -> int:
        """Attach a program that knows no GPU to the scope's slice until the test ends; return its id."""
        path = scope.cgroup.parent
        last_wins = [(rule, True) for rule in rules("c *:* rwm", "b *:* rwm")] + [(rule, False) for rule in rules(GPU)]
        code = shapes.crun(last_wins)
        blocker = self._stack.enter_context(bpf.program(code))
        bpf.attach(path, blocker.fd)
        self._stack.callback(bpf.detach, path, blocker.fd)
        return blocker.id


@pytest.fixture
def stage(node: Node) -> Iterator[Stage]:
    """Return the way to scopes; they and all programs end with the test."""
    with ExitStack() as stack:
        yield Stage(node, stack)


def explain(guard: Gpuguard, scope: Scope) -> dict[str, Any]:
    """Return what `gpuguard explain --json` says of a scope."""
    done = guard.run("explain", scope.name, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def after_reload(found: dict[str, Any]) -> dict[str, Any]:
    """Return for each rule whether it is said to be in force after a reload."""
    return {f"{rule['device']} {rule['access']}": rule["after_reload"] for rule in found["rules"]}


def answers(found: dict[str, Any], line: str) -> tuple[Any, ...]:
    """Return what is said of one rule: entitled, effective, declared, after a reload."""
    (rule,) = (rule for rule in found["rules"] if f"{rule['device']} {rule['access']}" == line)
    return (rule["entitled"], rule["effective"], rule["declared"], rule["after_reload"])


def test_protected(launch: Launch, stage: Stage) -> None:
    """A container that is declared and has its device keeps it, and nothing is to be done."""
    guard = launch().start()
    scope = stage.scope(GPU, declared=(ENTRY,))
    guard.await_state(scope.name, "protected")
    found = explain(guard, scope)
    assert (found["container"]["state"], found["node"]["daemon"]) == ("protected", "running")
    assert answers(found, GPU) == (True, True, True, True)
    assert (found["reload"], found["advice"]) == ("Nothing is taken away.", ["Nothing."])


@pytest.mark.invariant(8)
def test_what_systemd_has_no_words_for(node: Node, launch: Launch, stage: Stage) -> None:
    """`c *:77` keeps the rest from being declared; what a reload is said to take it takes, by systemd's program.

    To explain changes nothing.
    """
    guard, scope = launch(), stage.scope(GPU, ODD)
    before = gate.programs(scope.cgroup), gate.declared(node, scope.name)
    found = explain(guard, scope)
    assert (gate.programs(scope.cgroup), gate.declared(node, scope.name)) == before
    assert found["container"]["state"] == "at-risk"
    assert answers(found, GPU) == answers(found, ODD) == (True, True, False, False)
    assert [(one["owner"], one["rules"]) for one in found["programs"]] == [("runtime", len(STANDARD) + 2)]
    assert found["advice"][0].startswith(f"Restart the container without {ODD}")

    node.run(["systemctl", "daemon-reload"])
    assert gate.rules(scope.cgroup) == {line for line, kept in after_reload(found).items() if kept}
    found = explain(guard, scope)
    (systemds,) = (one for one in found["programs"] if one["owner"] == "systemd")
    (gpu,) = (rule for rule in found["rules"] if rule["device"] == "c 195:0")
    assert found["container"]["state"] == "lost"
    assert gpu["denied_by"] == [
        {"cgroup": found["container"]["cgroup"], "program": systemds["program"], "owner": "systemd"}
    ]
    assert "gives back what systemd has words for" in found["advice"][0]


def test_blocked_by_a_program_on_the_slice(launch: Launch, stage: Stage) -> None:
    """The level, the program and its id are named, in the document and to people; no repair is said to help."""
    guard, scope = launch().start(), stage.scope(GPU, declared=(ENTRY,))
    guard.await_state(scope.name, "protected")
    blocker = stage.block(scope)
    found = explain(guard, scope)
    (gpu,) = (rule for rule in found["rules"] if rule["entitled"])
    assert found["container"]["state"] == "lost"
    assert gpu["denied_by"] == [{"cgroup": "/system.slice", "program": blocker, "owner": None}]
    assert (gpu["effective"], gpu["declared"], gpu["after_reload"]) == (False, True, False)
    (above,) = (one for one in found["programs"] if one["program"] == blocker)
    assert (above["cgroup"], above["rules"], above["exact"]) == ("/system.slice", None, False)
    assert f"`bpftool prog show id {blocker}`" in found["advice"][0]
    text = guard.run("explain", scope.name).stdout
    assert f"program {blocker} on /system.slice" in text
    assert "cannot be followed: was asked" in text
    assert "\x1b" not in text


def test_a_slice_that_systemd_restricts(node: Node, launch: Launch, stage: Stage) -> None:
    """What is advised there gives the device back, without a reload."""
    guard, scope = launch().start(), stage.scope(GPU, declared=(ENTRY,))
    guard.await_state(scope.name, "protected")
    node.run(["systemctl", "set-property", "--runtime", "system.slice", "DevicePolicy=closed"])
    node.carried_out()
    try:
        found = explain(guard, scope)
        assert found["container"]["state"] == "lost"
        assert not RuleSet.of(*gate.rules(scope.cgroup)).covers(Rule.parse(GPU))
        advised = found["advice"][0].split("`")[1]
        assert advised == f"systemctl set-property --runtime system.slice 'DeviceAllow={ENTRY}'"
        node.run(shlex.split(advised))
        node.carried_out()
        assert RuleSet.of(*gate.rules(scope.cgroup)).covers(Rule.parse(GPU))
        assert explain(guard, scope)["container"]["state"] == "protected"
    finally:
        node.run(["systemctl", "revert", "system.slice"])
        node.run(["systemctl", "daemon-reload"])
