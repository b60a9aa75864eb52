"""What a doctor makes of a node."""

from __future__ import annotations

from typing import Any

import pytest

from gpuguard.model.doctor import Examination, Finding, Gravity, Links, findings
from gpuguard.model.reports import SourceReport
from gpuguard.model.state import State
from gpuguard.model.write import Standing
from tests.model.examined import ID, container, examined

NICE = Standing("nice", "no real-time class: Operation not permitted")
SLICE = "/sys/fs/cgroup/cpu/gpuguard.slice"
BUDGETS = (f"{SLICE}/cpu.rt_runtime_us", f"{SLICE}/gpuguard.service/cpu.rt_runtime_us")


def only(seen: Examination) -> Finding:
    """Return the one finding."""
    (found,) = findings(seen)
    assert seen.gravity is found.gravity
    return found


def test_a_healthy_node() -> None:
    """Nothing is found where nothing is wrong, whatever containers there are that need nothing."""
    well = [container(state) for state in (State.PROTECTED, State.SETTLING, State.UNRESTRICTED)]
    assert findings(examined(*well)) == ()
    assert examined(*well).gravity is Gravity.FINE


@pytest.mark.parametrize(
    ("state", "gravity"),
    [
        (State.LOST, Gravity.BROKEN),
        (State.PARTIAL, Gravity.BROKEN),
        (State.STALE, Gravity.BROKEN),
        (State.OPAQUE, Gravity.ADVICE),
        (State.AT_RISK, Gravity.ADVICE),
    ],
)
def test_containers(state: State, gravity: Gravity) -> None:
    """An outage is broken, a risk and a doubt are advice; each names the container, the reason, and where to look."""
    found = only(examined(container(state, reason="no spelling")))
    assert found == Finding(gravity, f"trainer is {state.value}: no spelling", f"`gpuguard explain {ID[:12]}`")
    assert only(examined(container(state, name=None))).text == f"docker {ID[:12]} is {state.value}"


@pytest.mark.parametrize(
    ("facts", "gravity", "text", "advice"),
    [
        ({"root": False}, Gravity.ADVICE, "not asked as root", "sudo gpuguard doctor"),
        # That root would not see it either nobody knows.
        ({"root": False, "node": None, "trouble": "no entry"}, Gravity.ADVICE, "as root: no entry", "sudo gpuguard"),
        ({"node": None, "trouble": "no cgroups here"}, Gravity.BROKEN, "no cgroups here", "Nothing is guarded"),
        ({"systemd": None}, Gravity.BROKEN, "systemd does not answer", "busctl status"),
        ({"daemon": "stopped"}, Gravity.ADVICE, "the daemon is stopped", "systemctl start gpuguard"),
        ({"daemon": "unknown"}, Gravity.ADVICE, "cannot be told", "systemctl restart gpuguard"),
        ({"daemon": "unknown", "root": False}, Gravity.ADVICE, "not asked as root", "sudo gpuguard doctor"),
        ({"daemon": "unknown", "trouble": "time is up"}, Gravity.ADVICE, "time is up", "systemctl restart gpuguard"),
        ({"mode": "observe"}, Gravity.ADVICE, "only observes", 'mode = "enforce"'),
        ({"version": "0.9"}, Gravity.ADVICE, "version 0.9, what is installed is 1.0", "systemctl restart gpuguard"),
        ({"fault": "g.toml: not TOML"}, Gravity.ADVICE, "g.toml: not TOML", "gpuguard config check"),
        ({"trouble": None, "without_effect": (("[guard] shield", "on cgroup v2"),)}, Gravity.ADVICE, "shield", "rely"),
        (
            {"sources": (SourceReport("monitor", up=False, reason="access denied"),)},
            Gravity.ADVICE,
            "the event source monitor is down: access denied",
            "busctl status",
        ),
        (
            {"sources": (SourceReport("sentinel", up=False),)},
            Gravity.ADVICE,
            "the event source sentinel is down: it does not say why",
            "journalctl -t gpuguard",
        ),
        ({"unserved": ("no metrics endpoint: in use",)}, Gravity.ADVICE, "no metrics endpoint: in use", "[metrics]"),
        ({"standing": NICE}, Gravity.ADVICE, "no real-time class: Operation not permitted", "RestrictRealtime"),
    ],
)
def test_each_finding(facts: dict[str, Any], gravity: Gravity, text: str, advice: str) -> None:
    """What is wrong, how grave it is, and what to do."""
    if "node" in facts:
        node_trouble = facts
        seen = examined(**{key: value for key, value in node_trouble.items() if key != "trouble"})
        seen = Examination(seen.versions, None, facts["trouble"], links=seen.links, root=seen.root)
    else:
        seen = examined(**facts)
    found = only(seen)
    assert found.gravity is gravity
    assert text in found.text
    assert advice in found.advice


def test_a_bad_file_without_a_daemon_keeps_it_from_starting() -> None:
    """That is broken; while a daemon runs it is not, and the daemon's own trouble is told likewise."""
    stopped = findings(examined(daemon="stopped", fault="g.toml: not TOML"))
    assert [one.gravity for one in stopped] == [Gravity.BROKEN, Gravity.ADVICE]
    assert stopped[0].text == "g.toml: not TOML"
    assert only(examined(trouble="[paths] has changed")).text == "[paths] has changed"


def test_a_budget_for_the_sentinel() -> None:
    """Where the kernel keeps real-time from it, the advice is the very line, the outermost group first."""
    found = only(examined(standing=NICE, budgets=BUDGETS))
    line = f"ExecStartPre=-+/bin/sh -c 'echo 50000 > {BUDGETS[0]}; echo 50000 > {BUDGETS[1]}'"
    assert f"[Service] {line}, then" in found.advice
    elsewhere = "/sys/fs/cgroup/cpu/user.slice/cpu.rt_runtime_us"
    found = only(examined(standing=NICE, budgets=(elsewhere,)))
    assert found.advice == f"As root `echo 50000 > {elsewhere}`, then start the daemon again."


@pytest.mark.parametrize(
    "facts", [{"standing": NICE, "cgroup": "v2"}, {"standing": None}, {"standing": NICE, "daemon": "stopped"}]
)
def test_how_the_sentinel_runs_matters_where_it_heals(facts: dict[str, Any]) -> None:
    """On cgroup v2 nothing is given back at the write, and without a daemon there is none."""
    assert not [one for one in findings(examined(**facts)) if "busy node" in one.text]


def test_links() -> None:
    """Missing links matter to a systemd that looks them up, not to one that reads the numbers from their names."""
    missing = Links(("/dev/nvidia0", "/dev/nvidiactl"), ("/dev/nvidiactl",))
    assert findings(examined(links=missing, systemd=240)) == ()
    found = only(examined(links=missing, systemd=239))
    assert "no link in /dev/char to /dev/nvidiactl: systemd 239" in found.text
    assert not any("link" in one.text for one in findings(examined(links=missing, systemd=None)))


def test_the_gravest_comes_first() -> None:
    """What is broken stands above advice, in whatever order it was found."""
    seen = examined(container(State.AT_RISK), container(State.LOST), daemon="stopped")
    assert [one.gravity.name for one in findings(seen)] == ["BROKEN", "ADVICE", "ADVICE"]
    assert seen.gravity is Gravity.BROKEN
