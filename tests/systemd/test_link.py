"""The connection that is made when it is needed."""

from __future__ import annotations

import pytest

from gpuguard.errors import BusUnavailableError
from gpuguard.systemd import link as link_module
from gpuguard.systemd.link import Link
from tests.systemd.peers import BusDaemon, FakeSystemd


async def test_it_connects_when_first_asked(daemon: BusDaemon, fake: FakeSystemd) -> None:
    """Nothing is connected before, and asking again keeps the connection."""
    link = Link(daemon.address)
    assert link.unique_name == ""
    assert await (await link.manager()).version() == 252
    name = link.unique_name
    assert name.startswith(":")
    await link.manager()
    assert link.unique_name == name
    assert fake.called("Get")[0].sender == name
    await link.close()


async def test_it_connects_again_after_a_restart(daemon: BusDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the bus is away asking fails, and it works again when the bus is back."""
    monkeypatch.setattr(link_module, "_REST", 0)
    link = Link(daemon.address)
    bus = (await link.manager()).bus
    daemon.stop()
    await bus.lost()
    with pytest.raises(BusUnavailableError):
        await link.manager()
    daemon.start()
    assert (await link.manager()).bus.connected
    await link.close()


async def test_a_failure_is_not_repeated_at_once(daemon: BusDaemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a while after a failure the same error is raised without a new attempt."""
    monkeypatch.setattr(link_module, "_REST", 3600)
    link = Link(daemon.address)
    daemon.stop()
    with pytest.raises(BusUnavailableError, match="no D-Bus"):
        await link.manager()
    daemon.start()
    with pytest.raises(BusUnavailableError, match="no D-Bus"):
        await link.manager()
