"""The commands as programs on a simulated node, without a daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_main import ENV, gpuguard_command
from tests.lab.sim.node import SimNode

GPU = ("c 195:0 rw", "c 195:255 rw")


@pytest.fixture
def config(sim: SimNode, tmp_path: Path) -> str:
    """Return the path of a configuration for the node."""
    file = tmp_path / "gpuguard.toml"
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in sim.config_paths().items()]
    file.write_text('guard.settle = "0s"\n[paths]\n' + "".join(lines))
    return str(file)


def test_from_risk_to_safety(sim: SimNode, config: str) -> None:
    """A container at risk is told by status and check; repair protects it; then a reload takes nothing."""
    scope = sim.scope(hook_rules=GPU)
    shown = json.loads(gpuguard_command("status", "--json", "--config", config).stdout)
    assert [(c["scope"], c["state"]) for c in shown["containers"]] == [(scope.name, "at-risk")]
    assert shown["node"]["daemon"] == "stopped"
    checked = gpuguard_command("check", "--config", config)
    assert checked.returncode == 1
    assert checked.stdout.startswith("GPUGUARD WARNING - 1 at-risk (")

    explained = gpuguard_command("explain", scope.name, "--config", config)
    assert (explained.returncode, explained.stderr) == (0, "")
    assert "It takes away c 195:0 rw, c 195:255 rw" in explained.stdout
    one = json.loads(gpuguard_command("explain", scope.name, "--json", "--config", config).stdout)
    assert [rule["after_reload"] for rule in one["rules"] if rule["entitled"]] == [False, False]
    assert one["container"] == shown["containers"][0]

    planned = gpuguard_command("repair", "--dry-run", "--config", config)
    assert planned.returncode == 0
    assert "declare /dev/char/195:0 rw" in planned.stdout
    repaired = gpuguard_command("repair", "--json", "--config", config)
    assert repaired.returncode == 0
    (deed,) = json.loads(repaired.stdout)["repairs"]
    assert (deed["scope"], deed["after"], deed["error"]) == (scope.name, "protected", None)

    sim.daemon_reload()
    checked = gpuguard_command("check", "--config", config)
    assert (checked.returncode, checked.stdout.partition(" | ")[0]) == (
        1,
        "GPUGUARD WARNING - 1 protected (daemon stopped)",
    )


def test_what_is_not_there_is_exit_code_4(sim: SimNode, config: str) -> None:
    """A mistyped container is told as such, and nothing is done to others."""
    sim.scope(hook_rules=GPU)
    for command in (("release", "nosuch"), ("repair", "nosuch"), ("explain", "nosuch")):
        done = gpuguard_command(*command, "--config", config)
        assert done.returncode == 4
        assert "nosuch" in done.stderr
        assert done.stdout == ""


def test_a_complaint_cannot_command_the_terminal(config: str) -> None:
    """What an error quotes may come from anywhere: nothing in it is obeyed."""
    done = gpuguard_command("explain", "\x1b[2J\x9bm", "--config", config)
    assert done.returncode == 4
    assert done.stderr.startswith("gpuguard: \ufffd[2J\ufffdm: no GPU container")


def test_watching_ends_with_ctrl_c(sim: SimNode, config: str) -> None:
    """`status --watch` shows the node until SIGINT, and leaves no traceback; no terminal, no escapes."""
    del sim
    command = [sys.executable, "-m", "gpuguard", "status", "--watch", "--config", config]
    with subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith("cgroup v1")
        watching.send_signal(signal.SIGINT)
        shown, complaint = watching.communicate(timeout=60)
    assert watching.returncode == 128 + signal.SIGINT
    assert complaint == ""
    assert "\x1b" not in shown
