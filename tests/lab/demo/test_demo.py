"""The demo plays to its end, to anybody, and explains its figures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Optional

import pytest

from tests.lab.demo.__main__ import which_bound
from tests.lab.demo.stage import SimStage
from tests.lab.errors import LabError
from tests.lab.sim.node import ROOT, SimNode

# An ordinary user who owns the clone; the umask is the one of distributions that give each user his own group.
_AS_A_USER = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "sh", "-c", 'umask 002; exec "$@"', "sh"]


def _plays(prefix: Sequence[str] = ()) -> str:
    """Play on the simulated node and return what was shown."""
    argv = [*prefix, sys.executable, "-m", "tests.lab.demo", "--simulated"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_plays_on_the_simulated_node() -> None:
    """Loss, repair and protection are shown, and why gpuguard's time is not the gap that a process meets."""
    restored, _, rest = _plays().partition("GPU access restored after ")[2].partition("\n  gpuguard's time is an upper")
    assert "safe from reloads" in restored
    assert "the gap that a process meets is shorter" in rest
    assert "losses seen                         0" in rest


def test_plays_to_an_ordinary_user() -> None:
    """The simulated node's files are the user's own: gpuguard believes them, and `gpuguard status` has an answer."""
    probe = subprocess.run([*_AS_A_USER, "id", "-u"], capture_output=True, text=True, check=False)
    if probe.stdout != "1000\n":
        pytest.skip(f"no user namespace: {probe.stderr.strip()}")
    shown = _plays(_AS_A_USER)
    assert "1 protected" in shown.partition("$ gpuguard status")[2].partition("$ curl")[0]
    assert "losses seen                         0" in shown


def test_a_command_that_fails_ends_the_demo(sim: SimNode) -> None:
    """What it complained of is told, rather than nothing shown."""
    stage = SimStage(sim)
    sim.path("/gpuguard.toml").write_text("[guard]\nmode = 'none'\n")
    with pytest.raises(LabError, match=r"gpuguard status failed with status \d+: .*mode"):
        stage.gpuguard("status")


@pytest.mark.parametrize(
    ("told", "gaps", "bound"),
    [
        (28, [12820.0], "lower"),
        (36000, [12820.0], "upper"),
        (36000, None, "upper"),
        (28, [], "no open fell"),
        (None, [12820.0], "does not know"),
    ],
)
def test_the_time_is_called_what_it_is(told: Optional[float], gaps: Optional[list[float]], bound: str) -> None:
    """From the write as it was noticed it is less than what a process met, from the start of the reload more."""
    assert bound in which_bound(told, gaps)
