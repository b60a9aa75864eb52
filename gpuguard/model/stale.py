"""Rules whose numbers no longer belong to the driver that they were given for. Pure.

A driver without a number of its own takes what is free when it is loaded (Documentation/admin-guide/devices.rst, 234 to
254 and 384 to 511): after a reload another one may have it, and the old rule opens that one's devices.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Optional

from gpuguard.model.gpu_inventory import FAMILY, rule_number
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import Rule

_RESTART = "a restart of the container gives it the new numbers"
_NVIDIA = "nvidia"
# Of the majors that drivers without one of their own are given.
_FREE = (range(234, 255), range(384, 512))


@dataclass(frozen=True)
class Numbers:
    """What is the matter with some rules' numbers: `stale` are another driver's, and why; `idle` have no driver now."""

    stale: Mapping[Rule, str]
    idle: frozenset[Rule]


def drivers_of(rules: Collection[Rule], majors: Majors) -> frozenset[tuple[str, int, str]]:
    """Return the drivers that the rules' majors belong to, for stale() to compare with later."""
    wanted = {(rule.kind, rule.major) for rule in rules}
    return frozenset(driver for driver in majors.drivers if driver[:2] in wanted)


def stale(
    rules: Collection[Rule],
    drivers_then: Collection[tuple[str, int, str]],
    majors_now: Majors,
    nodes: Mapping[str, DeviceNumber],
    nodes_now: Mapping[str, DeviceNumber],
) -> Mapping[Rule, str]:
    """Return the stale ones, and why each is.

    `drivers_then` are (type, major, name) of when the rules were given; `nodes` the paths under which they were, with
    their numbers then; `nodes_now` the host's nodes. A driver that is not loaded now makes nothing stale, and neither
    does a node that is not there, or one that bears another name of the same driver.
    """
    found = {}
    for rule in rules:
        why = _by_driver(rule, drivers_then, majors_now) or _by_node(rule, nodes, nodes_now)
        if why is not None:
            found[rule] = f"{why}: {_RESTART}"
    return found


def unloaded(
    rules: Collection[Rule], drivers_then: Collection[tuple[str, int, str]], majors_now: Majors
) -> frozenset[Rule]:
    """Return the rules whose driver is not loaded now: nobody knows which major it, or another one, will have next."""
    known = {(kind, major) for kind, major, _ in drivers_then}
    there = {(kind, major) for kind, major, _ in majors_now.drivers}
    return frozenset(rule for rule in rules if (rule.kind, rule.major) in known - there)


def unguarded(
    rules: Collection[Rule],
    drivers_then: Collection[tuple[str, int, str]],
    majors_now: Majors,
    guarded: Callable[[Rule], bool],
) -> Mapping[Rule, str]:
    """Return the rules that belong to a driver which nobody guards, and why; of those whose driver is not known.

    An older gpuguard learnt them, and did not note whose they were: they were guarded then.
    """
    known = {(kind, major) for kind, major, _ in drivers_then}
    found = {}
    for rule in rules:
        now = majors_now.names(rule.kind, rule.major) if rule.major is not None else frozenset[str]()
        if now and (rule.kind, rule.major) not in known and not guarded(rule):
            found[rule] = f"{rule.device} is {_names(frozenset(now))}'s now: {_RESTART}"
    return found


def _by_driver(rule: Rule, drivers_then: Collection[tuple[str, int, str]], majors_now: Majors) -> Optional[str]:
    if rule.major is None:
        return None
    place = (rule.kind, rule.major)
    then = frozenset(_one_name(name) for *at, name in drivers_then if tuple(at) == place)
    now = frozenset(_one_name(name) for name in majors_now.names(*place))
    moved = sorted(
        (name, major)
        for kind, major, name in majors_now.drivers
        if kind == rule.kind and major != rule.major and _one_name(name) in then
    )
    if not then or then & now or not (now or moved):
        return None
    parts = [f"{rule.device} was {_names(then)}'s"]
    parts += [f"which now has major {moved[0][1]}"] if moved else []
    text = ", ".join(parts)
    return f"{text}; {rule.major} is {_names(now)}'s" if now else text


def _by_node(rule: Rule, nodes: Mapping[str, DeviceNumber], nodes_now: Mapping[str, DeviceNumber]) -> Optional[str]:
    for path, given in sorted(nodes.items()):
        now = nodes_now.get(path)
        if now is None or now == given or (rule.kind, rule.major) != (given.kind, given.major):
            continue
        # With its driver's major all of its numbers have gone, and another driver's device can have just this one.
        moved = (now.kind, now.major) != (given.kind, given.major)
        if moved and not (_free(now) and _free(given)):
            continue  # a node of another name on the host: `--device /dev/nvidia-uvm:/dev/nvidia0`
        if moved or (rule_number(rule) == given and given not in nodes_now.values()):
            before = f"{given.kind} {given.major}:{given.minor}"
            return f"{path} was {before}, and is {now.kind} {now.major}:{now.minor} now"
    return None


def _free(number: DeviceNumber) -> bool:
    return any(number.major in majors for majors in _FREE)


def _one_name(name: str) -> str:
    """NVIDIA's driver has several names for its major, and other ones since 550.40."""
    return _NVIDIA if name in FAMILY else name


def _names(names: frozenset[str]) -> str:
    return "/".join(sorted(names))
