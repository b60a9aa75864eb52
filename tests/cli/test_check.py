"""The monitoring plugin's line and exit code."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Optional

import pytest

from gpuguard.cli.check import verdict
from gpuguard.model.state import State
from tests.cli.made import ID, container, node


@pytest.mark.parametrize(
    ("states", "code"),
    [
        ([], 0),
        ([State.PROTECTED], 0),
        ([State.PROTECTED, State.SETTLING, State.UNRESTRICTED], 0),
        ([State.PROTECTED, State.AT_RISK], 1),
        ([State.LOST], 2),
        ([State.PARTIAL], 2),
        ([State.STALE], 2),
        ([State.OPAQUE], 3),
        ([State.OPAQUE, State.AT_RISK], 3),
        ([State.OPAQUE, State.AT_RISK, State.LOST], 2),
    ],
)
def test_exit_code(states: list[State], code: int) -> None:
    """A known outage comes first, then one that cannot be ruled out, then one that may come."""
    assert verdict(node(*(container("trainer", state) for state in states)))[0] == code


def test_the_line_of_a_healthy_node() -> None:
    """Verdict, count, and performance data for all states, zeros included."""
    _, line = verdict(node(*(container(f"t{i}", State.PROTECTED) for i in range(3))))
    text, figures = line.split(" | ")
    assert text == "GPUGUARD OK - 3 protected"
    assert figures.startswith("protected=3 at_risk=0 partial=0 lost=0 stale=0 ")
    assert set(figures.split()) >= {"opaque=0", "unrestricted=0", "settling=0"}


def test_the_line_names_who_is_in_trouble() -> None:
    """The alert's text says which containers, the worst first, and not who is well."""
    containers = [container("well", State.PROTECTED), container("risky", State.AT_RISK), container("dead", State.LOST)]
    _, line = verdict(node(*containers))
    assert line.startswith("GPUGUARD CRITICAL - 1 lost (dead), 1 at-risk (risky), 1 protected | ")


def test_many_names_are_cut() -> None:
    """A node that lost everything still gives one readable line."""
    _, line = verdict(node(*(container(f"job{i}", State.LOST) for i in range(9))))
    assert "9 lost (job0, job1, job2, job3, job4 and 4 more) | " in line


def test_a_long_name_gives_way_to_the_id() -> None:
    """Three names of 253 letters each would push the figures out of what a monitoring system keeps."""
    _, line = verdict(node(*(container("x" * 253, State.LOST) for _ in range(9))))
    assert f"9 lost ({', '.join([ID[:12]] * 5)} and 4 more) | " in line


@pytest.mark.parametrize(
    ("daemon", "mode", "trouble", "code", "remark"),
    [
        ("stopped", "enforce", None, 1, "daemon stopped"),
        ("running", "observe", None, 1, "daemon in observe mode"),
        ("unknown", "enforce", None, 3, "cannot tell whether the daemon works"),
        ("running", "enforce", "g.toml: 2 faults\n  one\n  two", 1, "g.toml: 2 faults"),
    ],
)
def test_who_is_not_guarded_is_warned(daemon: str, mode: str, trouble: Optional[str], code: int, remark: str) -> None:
    """However well the containers are, and be there none yet: what is lost next nobody would give back."""
    for containers in ((container("t", State.PROTECTED),), ()):
        told, line = verdict(replace(node(*containers, daemon=daemon), mode=mode, trouble=trouble))
        assert told == code
        assert f" ({remark}) | " in line


def test_an_outage_outweighs_the_daemons_absence() -> None:
    """A stopped daemon does not make a loss look better, nor an unknown one."""
    for daemon in ("stopped", "unknown"):
        assert verdict(node(container("t", State.LOST), daemon=daemon))[0] == 2


def test_a_name_cannot_forge_performance_data() -> None:
    """A bar or a line's end in a name would begin data or a second line for the monitoring system."""
    _, line = verdict(node(container("x | lost=0\nOK", State.LOST)))
    assert len(re.findall(r"\|", line)) == 1
    assert "\n" not in line
