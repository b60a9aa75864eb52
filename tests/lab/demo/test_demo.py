"""The demo plays to its end, and explains its figures."""

from __future__ import annotations

import subprocess
import sys

from tests.lab.sim.node import ROOT


def test_plays_on_the_simulated_node() -> None:
    """Loss, repair and protection are shown, and why gpuguard's time is not the gap that a process meets."""
    argv = [sys.executable, "-m", "tests.lab.demo", "--simulated"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    restored, _, rest = done.stdout.partition("GPU access restored after ")[2].partition(
        "\n  gpuguard's time is an upper"
    )
    assert "safe from reloads" in restored
    assert "the gap that a process meets is shorter" in rest
    assert "losses seen                         0" in rest
