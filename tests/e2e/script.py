"""The script of the conformance test: steps on one scope, each small enough to say what differs when it does."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Callable

from dbus_next.signature import Variant

from tests.e2e.observer import Observer
from tests.lab.sim.manager import SYSTEMD, unit_path

Step = Callable[[Observer], Awaitable[object]]
STEPS: dict[str, Step] = {}

GPU = ("c 195:0 rw", "c 195:255 rw", "c 510:0 rw")
OTHER = "conformance-nosuch.scope"


def step(name: str) -> Callable[[Step], Step]:
    """Add a function to the script; the order of the definitions is the order of the steps."""

    def add(function: Step) -> Step:
        STEPS[name] = function
        return function

    return add


def allow(*entries: str) -> tuple[str, Variant]:
    """Return a DeviceAllow property from entries as in a unit file; an access of "-" is an empty one."""
    pairs = [entry.rsplit(" ", 1) for entry in entries]
    return "DeviceAllow", Variant("a(ss)", [[path, access.strip("-")] for path, access in pairs])


def policy(value: str) -> tuple[str, Variant]:
    """Return a DevicePolicy property."""
    return "DevicePolicy", Variant("s", value)


def setting(name: str, *properties: tuple[str, Variant]) -> None:
    """Add a step that sets properties."""
    STEPS[name] = lambda node: node.set(*properties)


async def start(node: Observer, *properties: tuple[str, Variant]) -> None:
    """Start the scope with the target's process in it, and wait for the end of its job."""
    node.pid = node.target.spawn()
    pairs = [
        ("PIDs", Variant("au", [node.pid])),
        ("Slice", Variant("s", "system.slice")),
        ("Delegate", Variant("b", True)),  # noqa: FBT003  # a D-Bus value
        *properties,
    ]
    pairs_as_lists = [list(pair) for pair in pairs]
    await node.manager("StartTransientUnit", "ssa(sv)a(sa(sv))", node.scope, "replace", pairs_as_lists, [])
    await node.until("JobRemoved")


async def reload(node: Observer) -> None:
    """Reload systemd."""
    await node.manager("Reload")


@step("start a scope")
async def _(node: Observer) -> None:
    await start(node, policy("strict"), allow("/dev/null rwm", "/dev/char/136:* rwm", "char-pts rwm"))


@step("start it again")
async def _(node: Observer) -> None:
    await node.manager("StartTransientUnit", "ssa(sv)a(sa(sv))", node.scope, "replace", [], [])


STEPS["reload a scope that is as it was started"] = reload
setting("set a first property", ("CPUShares", Variant("t", 2048)))
setting("set a list as runc does", policy("strict"), allow(), allow("/dev/null rwm", "/dev/zero rw", "char-pts rwm"))


@step("write rules as a hook does")
async def _(node: Observer) -> None:
    node.hook(*GPU, "c 10:229 rwm")


setting("change the description", ("Description", Variant("s", "conformance")))
setting("change CPU shares", ("CPUShares", Variant("t", 512)))
setting("declare devices", allow("/dev/char/195:0 rw", "/dev/char/510:0 rw"))
setting("declare the same again", allow("/dev/char/195:0 rw", "/dev/char/510:0 rw"))
setting("declare a known path with other access", allow("/dev/char/195:0 r"))
setting("declare what is not there", allow("/dev/nvidia9 rw", "char-nosuch rw", "/dev/char/195:* rw"))
setting("declare without access", allow("/dev/char/195:1 -"))
setting("declare one device under three names", allow("/dev/zero m", "/dev/char/1:5 r", "char-mem w"))
setting("declare groups", allow("char-188 rw", "char-pt[ms] rw", "block-7 r"))
setting("declare every block device", allow("block-* r"))
setting("refuse a path outside /dev", allow("/srv/x rw"))
setting("refuse a path that climbs", allow("/dev/../etc/passwd rw"))
setting("refuse a path that is not normalized", allow("/dev//null rw"))
setting("refuse a blank in a path", ("DeviceAllow", Variant("a(ss)", [["/dev/a b", "rw"]])))
setting("refuse an unknown access", allow("/dev/char/195:1 rx"))
setting("change nothing when the second entry is bad", allow("/dev/char/195:2 rw", "/srv/x rw"))
setting("change nothing when the second property is bad", allow("/dev/char/195:2 rw"), policy("loose"))
setting("refuse an unknown property", ("Nonsense", Variant("s", "")))
setting("refuse a wrong type", ("DeviceAllow", Variant("s", "/dev/null")))


@step("refuse a missing unit")
async def _(node: Observer) -> None:
    await node.set_on(OTHER, allow("/dev/null rw"))


@step("refuse a name that is none")
async def _(node: Observer) -> None:
    await node.set_on("nosuch", allow("/dev/null rw"))


@step("refuse a wrong signature")
async def _(node: Observer) -> None:
    await node.manager("SetUnitProperties", "s", node.scope)


@step("refuse a method that is none")
async def _(node: Observer) -> None:
    await node.manager("Nonsense")


@step("subscribe twice")
async def _(node: Observer) -> None:
    await node.manager("Subscribe")


@step("ask for a missing unit")
async def _(node: Observer) -> None:
    await node.manager("GetUnit", "s", OTHER)


@step("ask for the unit of a process that is none")
async def _(node: Observer) -> None:
    await node.manager("GetUnitByPID", "u", 4_000_000)


@step("ask for properties of an interface that is none")
async def _(node: Observer) -> None:
    await node.properties(f"{SYSTEMD}.Service")


@step("ask for properties of an object that is none")
async def _(node: Observer) -> None:
    await node.properties(f"{SYSTEMD}.Unit", "/org/freedesktop/systemd1/nosuch")


@step("ask for properties of a missing unit")
async def _(node: Observer) -> None:
    found = await node.properties(f"{SYSTEMD}.Unit", unit_path(OTHER))
    assert (found["ActiveState"].value, found["LoadState"].value) == ("inactive", "not-found")


@step("find the scope")
async def _(node: Observer) -> None:
    [[row]] = await node.manager("ListUnitsByPatterns", "asas", [], ["conformance-*.scope"])
    assert row[2:] == ["loaded", "active", "running", "", unit_path(node.scope), 0, "", "/"]
    assert await node.manager("GetUnitByPID", "u", node.pid) == [unit_path(node.scope)]
    assert await node.manager("GetUnit", "s", node.scope) == [unit_path(node.scope)]
    found = await node.properties(f"{SYSTEMD}.Scope")
    assert found["ControlGroup"].value == node.group


STEPS["reload"] = reload


@step("reload after a hook's write")
async def _(node: Observer) -> None:
    node.hook("c 195:255 rw")
    await reload(node)


@step("reexec after a hook's write")
async def _(node: Observer) -> None:
    node.hook("c 195:255 rw")
    try:
        await node.manager("Reexecute")
    finally:
        await node.until("Reloading False")


setting("reset and set in one call", allow(), allow("/dev/null rwm", "/dev/char/195:1 rw"))


@step("deny one access behind systemd's back")
async def _(node: Observer) -> None:
    node.hook("c 195:1 w", "c 1:3 rwm", verb="deny")


@step("allow it in two parts")
async def _(node: Observer) -> None:
    node.hook("c 195:1 w", "c 1:3 r", "c 1:3 m")


@step("reload under a shield")
async def _(node: Observer) -> None:
    node.hook("c 10:229 rwm")
    (node.directory() / "shield").mkdir()
    await reload(node)


setting("declare under a shield", allow("/dev/char/195:7 rw"))
setting("declare less under a shield", allow(), allow("/dev/null r"))


@step("reload after the shield")
async def _(node: Observer) -> None:
    (node.directory() / "shield").rmdir()
    await reload(node)


@step("delete the drop-in")
async def _(node: Observer) -> None:
    node.transient("50-DeviceAllow.conf").unlink()


setting("change CPU shares without the drop-in", ("CPUShares", Variant("t", 1024)))
STEPS["reload without the drop-in"] = reload


@step("write the drop-in by hand")
async def _(node: Observer) -> None:
    text = "[Scope]\nDeviceAllow=/dev/char/195:0 rw\nDeviceAllow=/dev/char/195:0 r\nDeviceAllow=/dev/char/195:1\n"
    node.transient("60-hand.conf").write_text(text)


STEPS["reload with it"] = reload


@step("change it by hand")
async def _(node: Observer) -> None:
    node.transient("60-hand.conf").write_text("[Scope]\nDeviceAllow=\nDeviceAllow=/dev/full rw\nDevicePolicy=loose\n")


STEPS["reload with the change"] = reload


@step("write a drop-in for all scopes of that prefix")
async def _(node: Observer) -> None:
    directory = node.target.root / "etc/systemd/system/conformance-.scope.d"
    directory.mkdir()
    (directory / "70-policy.conf").write_text("[Scope]\nDevicePolicy=closed\n")


STEPS["reload with that"] = reload


@step("reload without either")
async def _(node: Observer) -> None:
    directory = node.target.root / "etc/systemd/system/conformance-.scope.d"
    (directory / "70-policy.conf").unlink()
    directory.rmdir()
    node.transient("60-hand.conf").unlink()
    await reload(node)


setting("clear the list", allow())
setting("lift the policy", policy("auto"))


@step("deny one device of all")
async def _(node: Observer) -> None:
    node.hook("c 195:0 rw", verb="deny")


setting("add one entry to policy auto", allow("/dev/char/195:0 rw"))
setting("close the policy", policy("closed"))
setting("lift both", allow(), policy("auto"))
STEPS["reload an unrestricted scope"] = reload
setting("restrict it again", policy("strict"), allow("/dev/null rwm"))


@step("reload without the scope's own file")
async def _(node: Observer) -> None:
    node.transient().unlink()
    await reload(node)


@step("end the scope")
async def _(node: Observer) -> None:
    node.target.end()
    await node.until("UnitRemoved")


@step("set a property of the scope that was")
async def _(node: Observer) -> None:
    await node.set(allow("/dev/null rw"))


@step("ask for properties of the scope that was")
async def _(node: Observer) -> None:
    found = await node.properties(f"{SYSTEMD}.Unit")
    assert found["LoadState"].value == "not-found"


@step("ask for the unit that was")
async def _(node: Observer) -> None:
    await node.manager("GetUnit", "s", node.scope)


@step("start it anew")
async def _(node: Observer) -> None:
    await start(node, policy("closed"))


@step("stop it")
async def _(node: Observer) -> None:
    await node.manager("StopUnit", "ss", node.scope, "replace")
    await node.until("UnitRemoved")
