"""Containers that race their own end: a name, an id and a control group that come again without the devices."""

from __future__ import annotations

import secrets
import time

import pytest

from tests.e2e import gate
from tests.e2e.attacks.arena import ROOT, Arena, Suspect
from tests.e2e.bundles import bundles
from tests.e2e.reloads import reloading
from tests.lab import hook
from tests.lab.devices import GPU0, GPU1
from tests.lab.poll import until
from tests.lab.scope import random_name

pytestmark = [pytest.mark.invariant(1), pytest.mark.invariant(5)]

TIMES = 3


def await_protected(arena: Arena, suspect: Suspect) -> None:
    """Wait until a scope is protected; what a reload has taken before gpuguard had seen it is given once more."""

    def protected() -> float:
        if arena.node.mode == "v1" and not gate.has(suspect.cgroup, GPU0):
            hook.allow(suspect.cgroup, GPU0)
        identity = suspect.scope.partition("-")[2].partition(".")[0]
        return arena.guard.total("gpuguard_container_info", container=identity, state="protected")

    until(protected, 30, f"{suspect.scope} to be protected")


def test_a_scope_of_the_same_name_without_devices(arena: Arena) -> None:
    """Scopes of one name, with a GPU and without in turn, under reloads and losses, too quick for the clock."""
    names = random_name(), random_name("nerdctl")
    with reloading(arena.node, 0.1):
        for number in range(TIMES):
            for name in names:
                first = arena.scope((GPU0,), name, wait=False)
                if number % 2:
                    gate.take_away(arena.node, name, GPU0)
                else:
                    await_protected(arena, first)
                arena.end(first)
                second = arena.scope((), name)
                arena.assert_denied(second.cgroup, devices=[GPU0])
                arena.assert_nothing_gained(second)
                if number < TIMES - 1:
                    arena.end(second)
        arena.assert_honest_heals()
    left = [arena._known(name, arena.node.cgroup(name), (), wait=False) for name in names]
    arena.withstand(*left)


def test_a_container_of_the_same_id_without_devices(arena: Arena) -> None:
    """The same with containers of runc's: an id is made with a GPU, deleted, and made again without."""
    node = arena.node
    with bundles(node) as made:
        bundle = made.make(devices=[GPU0])
        bare = made.make(devices=[GPU1])
        config = node.path(f"/root/bundles/{bundle.id}/config.json")
        without = config.read_text(encoding="utf-8").replace("/root/nvidia-hook", "/bin/true")
        given = config.read_text(encoding="utf-8")
        with reloading(node, 0.1):
            for _ in range(TIMES):
                config.write_text(given, encoding="utf-8")
                bundle.make("run --detach")
                gate.take_away(node, bundle.scope, GPU0)
                bundle.runc("delete --force")
                config.write_text(without, encoding="utf-8")
                bundle.make("run --detach")
                arena.assert_denied(bundle.cgroup, devices=[GPU0, GPU1])
                if _ < TIMES - 1:
                    bundle.runc("delete --force")
        assert bare.id not in node.run(["runc", "list", "--quiet"]).stdout
        arena.withstand(arena._known(bundle.scope, bundle.cgroup, (), wait=False))
        bundle.runc("delete --force")


def test_a_container_that_ends_itself_and_comes_again(arena: Arena) -> None:
    """One that its engine starts again and again, with one id; another takes its name while losses come."""
    # It stays for the first time, until it is known.
    init = "[ -e /begun ] || { : >/begun; sleep 1000; }; sleep 0.3; [ -e /stay ] || exit 1"
    suspect = arena.enter((*ROOT, "--restart=always"), init=init, wait=False)
    assert suspect.container is not None
    end = time.monotonic() + 4
    with reloading(arena.node, 0.2):
        while time.monotonic() < end:
            arena.node.run(["docker", "restart", "--time=0", suspect.container.name], check=False)
            arena.guard.repair()
    arena.assert_honest_heals()
    suspect.container.stop()
    name = f"docker-{suspect.container.id}.scope"
    show = ["systemctl", "show", "--property=LoadState", "--value", name]
    until(lambda: arena.node.run(show).stdout.strip() == "not-found", 20, f"the end of {name}")
    again = arena.scope((), name)
    arena.withstand(again)


def test_ids_of_odd_form(arena: Arena) -> None:
    """Scopes whose ids are paths, dots, or of a wrong length, with a GPU in force: no path is made of them."""
    hexes = secrets.token_hex(32)
    forms = [
        *(f"cri-containerd-{odd}.scope" for odd in ("..", ".", "...", "..-..", "a..b", "-", "a-", "x" * 77, "a:b")),
        *(f"docker-{odd}.scope" for odd in ("..", hexes[:63], hexes + "0", hexes.upper(), f"{hexes[:60]}/../"[:60])),
        f"cri-containerd-..\\x2f..\\x2f{hexes}.scope",
        f"nerdctl-..\\x2f{hexes}.scope",
        f"libpod-{hexes}\\x0a.scope",
        f"crio-conmon-{hexes}.scope",
    ]
    suspects = [arena.scope((), name) for name in forms]
    arena.withstand(*suspects)
    known = arena.guard.status()
    assert [name for name in forms if name in known] == []
    ledger = [path.name for path in arena.node.path("/run/gpuguard/ledger").iterdir()]
    assert [name for name in ledger if not name.partition(".")[0].isdecimal()] == []
