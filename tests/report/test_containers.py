"""The rows of gpuguard_container_info: labels, cap, and what a hostile name can do."""

from __future__ import annotations

import subprocess

from gpuguard.model.state import State
from gpuguard.model.status import ContainerStatus
from gpuguard.report.containers import MAX_ROWS, ContainersCollector
from gpuguard.report.metrics import Metrics
from tests.report.support import status, tool


def rows(*statuses: ContainerStatus) -> list[dict[str, str]]:
    """Return the labels of all rows."""
    collector = ContainersCollector()
    collector.statuses = statuses
    _, info = collector.collect()
    return [sample.labels for sample in info.samples]


def test_a_row() -> None:
    """A row says which container it is and how it stands; what is not known is empty."""
    known = ContainerStatus(
        "cri.scope", "/k/cri.scope", "abc", "containerd", State.AT_RISK, name="main", namespace="ml", pod="train-0"
    )
    assert rows(known, ContainerStatus("x.scope", "/x", "", "unit", State.PROTECTED)) == [
        {
            "container": "abc",
            "runtime": "containerd",
            "namespace": "ml",
            "pod": "train-0",
            "name": "main",
            "state": "at-risk",
        },
        {"container": "", "runtime": "unit", "namespace": "", "pod": "", "name": "", "state": "protected"},
    ]


def test_rows_are_capped_and_trouble_comes_first() -> None:
    """Of too many containers the healthy ones are left out, never the one that lost its GPU."""
    many = [status(number) for number in range(MAX_ROWS + 10)]
    found = rows(*many, status(MAX_ROWS + 10, State.LOST))
    assert len(found) == MAX_ROWS
    assert found[0]["state"] == "lost"


def test_hostile_names_do_not_break_the_exposition() -> None:
    """Quotes, newlines, backslashes, lone surrogates, and names that are equal when cut: promtool finds it valid."""
    long = "n" * 300
    hostile = ['a"} 1\ngpuguard_containers{state="lost"} 9', "back\\slash", "\udcff\x00", long + "1", long + "2"]
    metrics = Metrics()
    metrics.containers([status(1, name=name) for name in hostile])
    _, body = metrics.render()
    assert body.count(b"\ngpuguard_container_info{") == len(hostile) - 1
    assert b'\ngpuguard_containers{state="lost"} 0.0\n' in body
    check = subprocess.run([tool("promtool"), "check", "metrics"], input=body, capture_output=True, check=False)
    assert (check.returncode, check.stderr) == (0, b"")
