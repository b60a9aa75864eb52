"""What counts as given to a container, and what only looks like it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuguard.model.state import State
from tests.guard.conftest import Station
from tests.guard.post import NEVER
from tests.kernel.groups import Groups
from tests.lab.sim.node import SimNode
from tests.model.looks import rules

NULL, GPU0, CTL = "c 1:3 rwm", "c 195:0 rw", "c 195:255 rw"


@pytest.mark.invariant(1)
class TestCopied:
    """The kernel gives a new control group the list of its parent, until systemd writes the container's own."""

    async def test_is_not_learnt_before_systemd_writes(
        self, sim: SimNode, station: Station, kernel: Groups, tmp_path: Path
    ) -> None:
        """On a real kernel: a GPU that the slice may use, seen in a scope that was just made, is not given back."""
        inner = f"{kernel.slice}/gpuguardtest.slice"
        made = f"{inner}/{kernel.scope.rpartition('/')[2]}"
        kernel.make(inner, NULL, GPU0, CTL)
        # Nothing but the test's own slice is to be seen, whatever real containers this machine has.
        (tmp_path / "devices").symlink_to(kernel.path(kernel.slice))
        post = await station(sim, {"paths": {**sim.config_paths(), "cgroup": str(tmp_path)}})
        await post.sources_up()
        kernel.path(made).mkdir()
        assert kernel.lines(made) == kernel.lines(inner)
        group = made[len(kernel.slice) :]
        await post.until(lambda: group in post.guard.scopes, "the scope was not seen")
        await post.rounds(3)
        kernel.make(made, NULL, CTL)
        await post.until(lambda: post.events("found"), "what the scope was given was not learnt")
        assert set(kernel.lines(made)) == {NULL, CTL}
        entitled = post.guard.scopes[group].entitled
        assert entitled is not None
        assert entitled.rules == rules(CTL)

    async def test_is_learnt_when_systemd_has_told_of_it(self, sim: SimNode, station: Station) -> None:
        """A container that systemd started with the very list of its slice has that list, and keeps it."""
        scope = sim.scope(hook_rules=[GPU0])
        parent = scope.cgroup.parent / "devices.list"
        before = parent.read_text()
        parent.write_text((scope.cgroup / "devices.list").read_text())
        post = await station(sim, {"guard": {"poll_interval": NEVER}})
        await post.becomes(scope, State.PROTECTED)
        parent.write_text(before)
