"""Device events as this machine's kernel sends them."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Union

import pytest

from gpuguard.kernel.uevents import UEVENTS, UeventSource
from gpuguard.model.device_classes import DeviceClass
from gpuguard.model.device_event import DeviceEvent
from gpuguard.source import SourceDown, SourceUp, Standing
from tests.systemd.peers import until
from tests.systemd.recorder import running

NETLINK_KOBJECT_UEVENT = 15
NULL_EVENT = DeviceEvent("change", "/devices/virtual/mem/null", "mem")

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to make the kernel send events")


class Heard:
    """What a source has told."""

    def __init__(self, *nodes: str) -> None:
        self.events: list[DeviceEvent] = []
        self.standings: list[Standing] = []
        self.classes = [DeviceClass("test", nodes=nodes, modules=("gpuguard_test",))]

    def source(self, most_per_second: int = 2000) -> UeventSource:
        """Return a source that tells it."""
        return UeventSource(self.classes, self.events.append, self.standings.append, most_per_second)

    async def until(self, *kinds: type[Union[SourceUp, SourceDown]]) -> None:
        """Wait until the standing has gone this way; fail after a deadline."""
        await until(lambda: [type(standing) for standing in self.standings] == list(kinds))


def change(name: str) -> None:
    """Have the kernel tell that one of the memory devices has changed."""
    Path(f"/sys/class/mem/{name}/uevent").write_text("change", encoding="ascii")


def descriptors() -> int:
    """Return how many this process has open."""
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def inject(count: int, *lines: bytes) -> None:
    """Have the kernel send events that it is given, to those who listen in this network namespace (its uevent_net_rcv).

    It takes them from root.
    """
    body = b"\0".join(lines) + b"\0"
    # NLMSG_MIN_TYPE: below are control messages, which are passed over
    message = struct.pack("=IHHII", 16 + len(body), 0x10, 1, 0, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_KOBJECT_UEVENT) as sender:
        for _ in range(count):
            sender.sendto(message, (0, 0))


@root
async def test_a_device_changes() -> None:
    """What happens to a device of a guarded class is told once; what happens to another is not."""
    heard = Heard("/dev/null")
    async with running(heard.source().run):
        await heard.until(SourceUp)
        change("zero")
        change("null")
        await until(lambda: heard.events == [NULL_EVENT])


@root
async def test_a_driver_comes() -> None:
    """A module's event is told with the module's name for a driver's."""
    heard = Heard()
    lines = (b"add@/module/gpuguard_test", b"ACTION=add", b"DEVPATH=/module/gpuguard_test", b"SUBSYSTEM=module")
    async with running(heard.source().run):
        await heard.until(SourceUp)
        inject(1, *lines)
        event = DeviceEvent("add", "/module/gpuguard_test", "module", "gpuguard_test")
        await until(lambda: heard.events == [event])


@root
async def test_a_name_of_any_bytes() -> None:
    """A network interface may be named by bytes that are no text; its event stops nothing."""
    heard = Heard("/dev/null")
    async with running(heard.source().run):
        await heard.until(SourceUp)
        inject(1, b"move@/devices/virtual/net/\xff", b"ACTION=move", b"DEVPATH=/devices/virtual/net/\xff", b"\xff=\xfe")
        inject(1, b"x")
        change("null")
        await until(lambda: heard.events == [NULL_EVENT])
        assert heard.standings == [SourceUp(UEVENTS)]


@root
@pytest.mark.invariant(4)
async def test_events_that_are_lost() -> None:
    """When the kernel had to drop events the source is down, and up again: look at everything."""
    heard = Heard("/dev/null")
    async with running(heard.source().run):
        await heard.until(SourceUp)
        inject(20000, b"change@/devices/gpuguard", b"ACTION=change", b"DEVPATH=/devices/gpuguard")
        await heard.until(SourceUp, SourceDown, SourceUp)
        assert heard.standings[1] == SourceDown(
            UEVENTS, "netlink: events came faster than they were read, and some are lost"
        )
        change("null")
        await until(lambda: heard.events == [NULL_EVENT])


@root
@pytest.mark.invariant(10)
async def test_events_that_are_too_many() -> None:
    """More than are followed end the session like lost ones."""
    heard = Heard()
    async with running(heard.source(most_per_second=5).run):
        await heard.until(SourceUp)
        inject(11, b"change@/devices/gpuguard", b"ACTION=change", b"DEVPATH=/devices/gpuguard")
        await heard.until(SourceUp, SourceDown, SourceUp)
        assert heard.standings[1] == SourceDown(UEVENTS, "more than 5 events a second: not followed for a while")


async def test_nothing_is_left() -> None:
    """A source that is stopped has closed its socket."""
    before = descriptors()
    heard = Heard()
    async with running(heard.source().run):
        await heard.until(SourceUp)
        assert descriptors() == before + 1
    assert descriptors() == before
