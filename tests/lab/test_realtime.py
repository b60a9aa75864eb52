"""Real-time processes in a node: with a budget, and not without where the kernel keeps one for each group."""

from __future__ import annotations

import pytest

from tests.lab.node import Node
from tests.lab.realtime import realtime

pytestmark = pytest.mark.node

_CHRT = ["chrt", "--rr", "10", "true"]


def _budget(node: Node) -> list[str]:
    return [
        file.read_text(encoding="ascii")
        for file in [node.path("/sys/fs/cgroup/cpu/cpu.rt_runtime_us")]
        if file.exists()
    ]


def test_a_program_gets_a_real_time_class_in_the_block(node: Node) -> None:
    """chrt(1) works inside; afterwards the node's group has what it had before."""
    before = _budget(node)
    with realtime(node):
        node.run(_CHRT)
    assert _budget(node) == before


@pytest.mark.cgroup("v1")
def test_what_a_group_has_not_is_given_for_the_block_alone(node_v1: Node) -> None:
    """On a kernel with RT_GROUP_SCHED chrt(1) fails in a node without a budget."""
    if not _budget(node_v1):
        pytest.skip("no hierarchy with cpu.rt_runtime_us: a kernel without RT_GROUP_SCHED, or cgroup v2")
    assert node_v1.run(_CHRT, check=False).returncode != 0


@pytest.mark.cgroup("v1")
def test_a_killed_process_keeps_no_budget(node_v1: Node) -> None:
    """What a real-time process held is given back when it is killed within the block."""
    before = _budget(node_v1)
    program = ["sh", "-c", "chrt --rr --pid 10 $$ && echo ready && exec sleep 60"]
    with realtime(node_v1), node_v1.daemon(program) as sleeper:
        sleeper.await_output("ready")
    assert _budget(node_v1) == before
