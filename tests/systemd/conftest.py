"""A private bus and a fake systemd for each test that asks for them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator

import pytest

from gpuguard.systemd.bus import Bus
from tests.systemd.peers import BusDaemon, FakeSystemd


@pytest.fixture
def daemon() -> Iterator[BusDaemon]:
    """Run a dbus-daemon of this test's own."""
    if not shutil.which("dbus-daemon"):
        pytest.skip("needs dbus-daemon (Debian: dbus-daemon, Fedora: dbus-daemon)")
    bus_daemon = BusDaemon()
    try:
        bus_daemon.start()
        yield bus_daemon
    finally:
        bus_daemon.close()


@pytest.fixture
def fake(daemon: BusDaemon) -> Iterator[FakeSystemd]:
    """Put a fake systemd on that bus."""
    systemd = FakeSystemd(daemon.address)
    yield systemd
    systemd.close()


@pytest.fixture
async def bus(daemon: BusDaemon) -> AsyncIterator[Bus]:
    """Return a connected Bus."""
    connected = Bus(daemon.address)
    await connected.connect()
    yield connected
    await connected.close()
