"""Which rules count as access to a guarded device."""

from __future__ import annotations

import pytest
from hypothesis import given

from gpuguard.model.device_classes import BUILT_IN, DeviceClass, Guarded
from gpuguard.model.majors import DeviceNumber, Majors
from gpuguard.model.rule import Rule
from tests.model.strategies import RULES
from tests.model.test_majors import NVIDIA_535, NVIDIA_550, REAL

NVIDIA = BUILT_IN["nvidia"]
UVM_NODE = DeviceNumber("c", 511, 0)
RDMA_CM_NODE = DeviceNumber("c", 10, 58)


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("c 195:0 rw", True),
        ("c 195:255 r", True),
        ("c 195:* w", True),
        ("c *:* rw", True),
        ("c *:77 rw", True),
        ("c 507:0 rw", True),
        ("c 508:1 r", True),
        ("c 195:* m", False),
        ("c *:* m", False),
        ("b 195:0 rw", False),
        ("b *:* rwm", False),
        ("c 10:200 rwm", False),
        ("c 136:* rwm", False),
        ("c 226:128 rw", False),
    ],
)
def test_nvidia(line: str, counts: bool) -> None:
    """NVIDIA's majors count by number or by the driver's name, when the rule lets anybody open."""
    assert Guarded.of([NVIDIA], NVIDIA_535)(Rule.parse(line)) is counts


def test_195_counts_without_a_driver() -> None:
    """195 is NVIDIA's even when the module is not loaded just now."""
    assert Guarded.of([NVIDIA], Majors())(Rule.parse("c 195:0 rw"))
    assert Guarded.of([NVIDIA], REAL)(Rule.parse("c 195:0 rw"))


def test_dynamic_majors_follow_the_driver() -> None:
    """A dynamic major counts for the driver that holds it now, and no longer for the one it had."""
    rule = Rule.parse("c 507:0 rw")
    assert Guarded.of([NVIDIA], NVIDIA_535)(rule)
    assert not Guarded.of([NVIDIA], NVIDIA_550)(rule)


def test_a_node_s_major_counts() -> None:
    """The host's own nodes name majors that no driver list names; all minors of them count."""
    guarded = Guarded.of([NVIDIA], REAL, [UVM_NODE])
    assert guarded(Rule.parse("c 511:0 rw"))
    assert guarded(Rule.parse("c 511:1 rw"))
    assert not guarded(Rule.parse("b 511:0 rw"))


@pytest.mark.parametrize(
    ("line", "counts"),
    [("c 10:58 rw", True), ("c 10:* rw", True), ("c *:58 rw", True), ("c 10:58 m", False), ("c 10:200 rwm", False)],
)
def test_a_misc_device_counts_alone(line: str, counts: bool) -> None:
    """A guarded node on the misc major does not make fuse and kvm, its neighbours, guarded."""
    assert Guarded.of([BUILT_IN["infiniband"]], REAL, [RDMA_CM_NODE])(Rule.parse(line)) is counts


@pytest.mark.parametrize(
    ("name", "line"),
    [("amd", "c 511:0 rw"), ("habana", "c 261:0 rw"), ("nvidia", "c 510:0 rw")],
)
def test_other_classes_by_driver(name: str, line: str) -> None:
    """Each class finds its driver in /proc/devices, and no other class takes it for its own."""
    rule = Rule.parse(line)
    assert [known for known in BUILT_IN if Guarded.of([BUILT_IN[known]], NVIDIA_550)(rule)] == [name]


def test_infiniband_by_driver() -> None:
    """InfiniBand registers one name for several majors: all of them count."""
    guarded = Guarded.of([BUILT_IN["infiniband"]], NVIDIA_535)
    assert guarded(Rule.parse("c 231:192 rw"))
    assert guarded(Rule.parse("c 235:0 rw"))


def test_custom_class() -> None:
    """A class of the operator's own counts by its majors and its driver patterns."""
    custom = DeviceClass("kgpu", majors=frozenset({555}), drivers=("watch*",))
    guarded = Guarded.of([NVIDIA, custom], REAL)
    for line in ("c 555:0 rw", "c 249:0 r", "c 195:0 rw"):
        assert guarded(Rule.parse(line))
    assert not guarded(Rule.parse("c 250:0 rw"))


def test_no_class_guards_nothing() -> None:
    """Without classes not even the wildcard counts."""
    assert not Guarded.of([], NVIDIA_550)(Rule.parse("c *:* rwm"))


@given(RULES, RULES)
def test_a_wider_rule_counts_when_a_narrower_does(wide: Rule, narrow: Rule) -> None:
    """Nothing that gives more than a guarded rule goes uncounted."""
    guarded = Guarded.of([NVIDIA], NVIDIA_535, [RDMA_CM_NODE])
    if guarded(narrow) and wide.covers(narrow):
        assert guarded(wide)
