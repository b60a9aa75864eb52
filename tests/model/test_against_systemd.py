"""The model's idea of systemd, compared with a real one: skipped where no node can be booted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import pytest

from gpuguard.model.deviceallow import NodeFacts, declared_rules, merge
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import Access, Rule
from gpuguard.model.ruleset import RuleSet
from gpuguard.model.unit import DeviceAllow, DevicePolicy
from tests.lab.node import Node
from tests.model.test_deviceallow import entries, systemd_merge
from tests.model.test_fragment import SEEN

# The version whose answers test_fragment.py records.
SEEN_WITH = 252

NUMBERS = {"/dev/null": DeviceNumber("c", 1, 3), "/dev/full": DeviceNumber("c", 1, 7)}


def as_listed(rules: RuleSet) -> set[str]:
    """Return the lines of devices.list: the kernel keeps one entry for each type, major and minor."""
    if rules.unrestricted:
        return set(rules.text().splitlines())
    access: dict[str, Access] = defaultdict(lambda: Access.NONE)
    for rule in rules:
        access[rule.device] |= rule.access
    return {f"{device} {bits.letters()}" for device, bits in access.items()}


@pytest.fixture(scope="module")
def facts(node_v1: Node) -> NodeFacts:
    """Return what this node's systemd goes by."""
    version = node_v1.run(["systemctl", "--version"]).stdout.split()[1]
    return NodeFacts(int(version), Majors.parse(node_v1.run(["cat", "/proc/devices"]).stdout), NUMBERS)


def declare(node: Node, unit: str, sent: Iterable[DeviceAllow]) -> None:
    """Send the entries to systemd."""
    pairs = [part for entry in sent for part in (entry.path, entry.access.letters())]
    manager = ["org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager"]
    values = ["DeviceAllow", "a(ss)", str(len(pairs) // 2), *pairs]
    node.run(["busctl", "call", *manager, "SetUnitProperties", "sba(sv)", unit, "true", "1", *values])


@pytest.mark.parametrize(
    ("policy", "texts", "wanted"),
    [
        (DevicePolicy.STRICT, [], ["c 195:0 rw", "b *:* m", "c 136:* rw"]),
        (DevicePolicy.STRICT, ["/dev/char/195:0 m", "char-* m"], ["c 195:0 rw", "c *:* r"]),
        (DevicePolicy.STRICT, ["char-p*s r", "char-pts w", "block-loop rwm"], ["c 136:* rw", "b 7:1 r"]),
        (DevicePolicy.STRICT, ["/dev/full rw", "/dev/gone rw", "char-nosuch rw", "char-4096 rw"], ["c 1:7 m"]),
        (DevicePolicy.STRICT, ["/run/systemd/inaccessible/chr rw", "/dev/char/x rw", "char-[!a-z]* r"], ["c 0:0 r"]),
        (DevicePolicy.CLOSED, ["/dev/null r"], ["c 1:3 rwm", "c 136:* rwm"]),
        (DevicePolicy.CLOSED, [], ["c *:77 rw", "c 195:255 rw"]),
        (DevicePolicy.AUTO, ["/dev/gone r"], ["c 195:* m", "b 7:* r"]),
        (DevicePolicy.AUTO, [], ["c 195:0 rw"]),
    ],
)
def test_the_declared_list_is_the_kernel_s(
    node_v1: Node, facts: NodeFacts, policy: DevicePolicy, texts: list[str], wanted: list[str]
) -> None:
    """A scope's devices.list is what the model says, before and after what merge() says is sent."""
    scope = node_v1.scope(device_allow=texts, policy=policy.value)
    try:
        current = entries(*texts)
        sent, _ = merge(policy, current, map(Rule.parse, wanted), facts, disk=None)
        assert as_listed(RuleSet.parse((scope.cgroup / "devices.list").read_text())) == as_listed(
            declared_rules(policy, current, facts)
        )
        if sent:
            declare(node_v1, scope.name, sent)
        assert as_listed(RuleSet.parse((scope.cgroup / "devices.list").read_text())) == as_listed(
            declared_rules(policy, systemd_merge(current, sent), facts)
        )
    finally:
        scope.stop()


@pytest.fixture(scope="module")
def shown(node_v1: Node, facts: NodeFacts) -> dict[str, tuple[str, list[str]]]:
    """Return what systemd makes of the texts that test_fragment.py records: policy and entries."""
    if facts.systemd != SEEN_WITH:
        pytest.skip(f"the answers were recorded with systemd {SEEN_WITH}, this machine has {facts.systemd}")
    units = node_v1.path("/run/systemd/system")
    names = {f"seen-{number}.service": name for number, name in enumerate(SEEN)}
    for unit, name in names.items():
        (units / f"{unit}.d").mkdir(parents=True)
        for number, text in enumerate(SEEN[name][0]):
            file = units / (f"{unit}.d/{number}.conf" if number else unit)
            start = "[Service]\nExecStart=/bin/true\n" if not number else "[Service]\n"
            file.write_bytes((start + text).encode(errors="surrogateescape"))
    node_v1.run(["systemctl", "daemon-reload"])
    properties = "--property=Id,DevicePolicy,DeviceAllow"
    found = {}
    for block in node_v1.run(["systemctl", "show", properties, *names]).stdout.split("\n\n"):
        values = defaultdict(list)
        for line in block.split("\n"):
            key, _, value = line.partition("=")
            values[key].append(value)
        found[names[values["Id"][0]]] = (values["DevicePolicy"][0], sorted(values["DeviceAllow"]))
    return found


@pytest.mark.parametrize("name", SEEN)
def test_the_recorded_answers_are_systemd_s(shown: dict[str, tuple[str, list[str]]], name: str) -> None:
    """What test_fragment.py expects of a text is what systemd says of it."""
    _, policy, recorded = SEEN[name]
    assert shown[name] == (policy, recorded)
