"""The manager's verbs, against a minimal systemd on a real bus."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from dbus_next.message import Message
from dbus_next.signature import Variant

from gpuguard.errors import BusError, BusTimeoutError, BusUnavailableError, NoSuchUnitError
from gpuguard.model.rule import Access
from gpuguard.model.unit import DeviceAllow, DevicePolicy, UnitProperties
from gpuguard.systemd import manager as manager_module
from gpuguard.systemd.bus import Bus
from gpuguard.systemd.manager import Manager
from tests.systemd.peers import BusDaemon, FakeSystemd, until

SCOPE = "docker-1.scope"
GPU = DeviceAllow("/dev/char/195:0", Access.RW)


@pytest.fixture
def manager(bus: Bus) -> Manager:
    """Return a manager on the test's bus."""
    return Manager(bus)


def never(_: Message) -> None:
    """Answer nothing."""


def load(fake: FakeSystemd, unit: dict[str, Any], scope: dict[str, Any]) -> None:
    """Make the fake know docker-1.scope."""
    fake.units[SCOPE] = {"Unit": {"LoadState": Variant("s", "loaded"), **unit}, "Scope": scope}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("252.39-1~deb12u2", 252),
        ("v247", 247),
        ("257.5 (257.5-2.fc42)", 257),
        ("249 (v249-51.oe2203sp1)", 249),
        ("255.4-1ubuntu8.4", 255),
        ("258~rc1", 258),
    ],
)
async def test_the_version_is_read(manager: Manager, fake: FakeSystemd, text: str, number: int) -> None:
    """Distributions' spellings of the version all give its major number."""
    fake.version = text
    assert await manager.version() == number


async def test_a_version_without_number_is_an_error(manager: Manager, fake: FakeSystemd) -> None:
    """A version that cannot be read is BusError with its text, not a guess."""
    fake.version = "unknown"
    with pytest.raises(BusError, match="unknown"):
        await manager.version()


async def test_a_scope_is_read(manager: Manager, fake: FakeSystemd) -> None:
    """All that gpuguard uses of a unit comes out in its own types."""
    load(
        fake,
        {
            "ActiveState": Variant("s", "active"),
            "Transient": Variant("b", True),  # noqa: FBT003 -- a D-Bus value
            "InvocationID": Variant("ay", bytes(range(16))),
            "FragmentPath": Variant("s", "/run/systemd/transient/docker-1.scope"),
            "ActiveEnterTimestampMonotonic": Variant("t", 77),
        },
        {
            "ControlGroup": Variant("s", "/system.slice/docker-1.scope"),
            "DevicePolicy": Variant("s", "strict"),
            "DeviceAllow": Variant("a(ss)", [["/dev/char/195:0", "rw"], ["char-pts", "rwm"]]),
            "BPFProgram": Variant("a(ss)", [["device", "/sys/fs/bpf/x"]]),
        },
    )
    assert await manager.unit(SCOPE) == UnitProperties(
        name=SCOPE,
        control_group="/system.slice/docker-1.scope",
        transient=True,
        invocation="000102030405060708090a0b0c0d0e0f",
        policy=DevicePolicy.STRICT,
        device_allow=(GPU, DeviceAllow("char-pts", Access.RWM)),
        bpf_device_program=True,
        fragment="/run/systemd/transient/docker-1.scope",
        started_usec=77,
    )


async def test_properties_that_an_old_systemd_lacks_have_defaults(manager: Manager, fake: FakeSystemd) -> None:
    """A unit without BPFProgram and the like is read as one that does not use them."""
    load(fake, {"ActiveState": Variant("s", "inactive")}, {})
    unit = await manager.unit(SCOPE)
    assert (unit.policy, unit.device_allow, unit.bpf_device_program) == (DevicePolicy.AUTO, (), False)
    assert (unit.invocation, unit.control_group, unit.started_usec) == ("", "", 0)


async def test_a_bpf_program_of_another_kind_is_no_device_program(manager: Manager, fake: FakeSystemd) -> None:
    """BPFProgram= entries for sockets and the like do not count."""
    load(fake, {}, {"BPFProgram": Variant("a(ss)", [["egress", "/sys/fs/bpf/x"]])})
    assert not (await manager.unit(SCOPE)).bpf_device_program


@pytest.mark.parametrize("name", [SCOPE, ""])
async def test_a_unit_that_is_not_loaded_is_told_apart(manager: Manager, fake: FakeSystemd, name: str) -> None:
    """A name that systemd does not know is NoSuchUnitError, and so is an empty one, which is not even asked for."""
    with pytest.raises(NoSuchUnitError):
        await manager.unit(name)
    assert not fake.called("LoadUnit")
    assert len(fake.called("GetUnit")) == bool(name)


async def test_a_unit_that_goes_between_the_calls_is_gone(manager: Manager, fake: FakeSystemd) -> None:
    """The empty unit that systemd invents at the path of one that is gone is NoSuchUnitError."""
    load(fake, {"LoadState": Variant("s", "not-found"), "ActiveState": Variant("s", "inactive")}, {})
    with pytest.raises(NoSuchUnitError):
        await manager.unit(SCOPE)


async def test_a_running_unit_without_its_file_is_still_there(manager: Manager, fake: FakeSystemd) -> None:
    """A service whose file was removed while it runs is read like any other."""
    load(fake, {"LoadState": Variant("s", "not-found"), "ActiveState": Variant("s", "active")}, {})
    assert (await manager.unit(SCOPE)).name == SCOPE


@pytest.mark.parametrize(
    "scope",
    [
        {"DevicePolicy": Variant("s", "lenient")},
        {"DeviceAllow": Variant("a(ss)", [["/dev/null", "x"]])},
        {"DeviceAllow": Variant("as", ["/dev/null"])},
    ],
)
async def test_an_answer_that_makes_no_sense_is_an_error(
    manager: Manager, fake: FakeSystemd, scope: dict[str, Any]
) -> None:
    """An unknown policy or access is BusError that names the unit, never a guess."""
    load(fake, {}, scope)
    with pytest.raises(BusError, match=SCOPE):
        await manager.unit(SCOPE)


async def test_entries_are_added_at_run_time(manager: Manager, fake: FakeSystemd) -> None:
    """allow_devices() is one SetUnitProperties call with runtime=True and DeviceAllow alone."""
    await manager.allow_devices(SCOPE, [GPU, DeviceAllow("char-pts", Access.READ)])
    [call] = fake.called("SetUnitProperties")
    name, runtime, [[member, value]] = call.body
    assert (call.signature, name, runtime, member) == ("sba(sv)", SCOPE, True, "DeviceAllow")
    assert (value.signature, value.value) == ("a(ss)", [["/dev/char/195:0", "rw"], ["char-pts", "r"]])


async def test_an_empty_list_is_never_sent(manager: Manager, fake: FakeSystemd) -> None:
    """No entries is ValueError, for systemd would clear its own list."""
    with pytest.raises(ValueError, match="clear"):
        await manager.allow_devices(SCOPE, [])
    assert not fake.calls


async def test_declaring_waits_longer_than_a_reload(
    manager: Manager, fake: FakeSystemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """allow_devices() has its own limit, over 30 s, and passing it is BusTimeoutError: unknown, not failed."""
    assert manager_module.DECLARE_TIMEOUT > 30
    monkeypatch.setattr(manager_module, "DECLARE_TIMEOUT", 0.05)
    fake.answers["SetUnitProperties"] = never
    with pytest.raises(BusTimeoutError):
        await manager.allow_devices(SCOPE, [GPU])


async def test_an_answer_settles_what_was_called_before(manager: Manager, fake: FakeSystemd) -> None:
    """settled_after() is False while the manager does not answer, and True when it does again."""
    fake.answers["Get"] = never
    assert not await manager.settled_after(0.05)
    del fake.answers["Get"]
    assert await manager.settled_after(30)


async def test_nothing_is_settled_by_a_broken_bus(manager: Manager, fake: FakeSystemd, daemon: BusDaemon) -> None:
    """settled_after() raises when the connection breaks while it waits."""
    fake.answers["Get"] = never
    waiting = asyncio.ensure_future(manager.settled_after(30))
    await until(lambda: fake.called("Get"))
    daemon.stop()
    with pytest.raises(BusUnavailableError):
        await waiting


async def test_subscribing_twice_is_no_error(manager: Manager, fake: FakeSystemd) -> None:
    """AlreadySubscribed is what was wanted."""
    await manager.subscribe()
    await manager.subscribe()
    assert len(fake.called("Subscribe")) == 2


async def test_a_refused_subscription_is_an_error(manager: Manager, fake: FakeSystemd) -> None:
    """Any other error of Subscribe is raised."""
    fake.answers["Subscribe"] = lambda call: Message.new_error(call, "org.freedesktop.DBus.Error.AccessDenied", "no")
    with pytest.raises(BusError, match="AccessDenied"):
        await manager.subscribe()
