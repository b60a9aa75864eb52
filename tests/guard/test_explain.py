"""From a scope on a simulated node to its explanation."""

from __future__ import annotations

import pytest

from gpuguard.errors import ConfigError, NotFoundError
from gpuguard.guard import explain as guards
from gpuguard.guard import once
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.model.advice import advice
from gpuguard.model.explanation import Comparison, Denier, Explanation
from gpuguard.model.runtime_record import Identity, RuntimeRecord
from gpuguard.model.state import State
from tests.guard.account import Account
from tests.guard.conftest import Station, patient
from tests.guard.post import Tables, settings
from tests.guard.test_once import desk
from tests.lab.scope import BASICS
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0, ODD = "c 195:0 rw", "c *:7 rw"
ENTRY = "/dev/char/195:0 rw"
NOT_BEFORE_A_LOSS: Tables = {"guard": {"declare": False}}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be patient with the simulated kernel."""
    patient(monkeypatch)


async def explain(sim: SimNode, scope: SimScope) -> Explanation:
    """Explain a scope."""
    return await once.explain(settings(sim), scope.name)


def of(found: Explanation, line: str) -> Comparison:
    """Return the comparison of one rule."""
    (one,) = (one for one in found.comparisons if str(one.rule) == line)
    return one


@pytest.mark.invariant(8)
async def test_at_risk(sim: SimNode) -> None:
    """Entitled, in force, unknown to systemd, lost after a reload; nothing is written or called."""
    scope = sim.scope(hook_rules=[GPU0])
    account = Account(sim, scope)
    found = await explain(sim, scope)
    one = of(found, GPU0)
    assert (found.container.state, found.node.cgroup, found.node.daemon) == (State.AT_RISK, "v1", "stopped")
    assert (one.entitled, one.effective, one.declared, one.after_reload) == (True, True, False, False)
    assert (one.node, one.entry, one.denied_by, found.shield, found.filters) == ("/dev/nvidia0", None, (), False, None)
    assert found.declaration is not None
    assert (found.declaration.policy.value, found.declaration.entries) == ("strict", len(BASICS))
    assert (found.declaration.differs, found.last_writer) == (False, None)
    assert (account.written(), account.declared(), list(sim.path("/run/gpuguard").iterdir())) == ([], [], [])


async def test_what_a_reload_is_said_to_do_it_does(sim: SimNode) -> None:
    """Each rule is in force after a reload where that is said, and no other."""
    scope = sim.scope(device_allow=[*BASICS, ENTRY], hook_rules=["c 195:1 rw", "c 189:* rwm", ODD])
    found = await explain(sim, scope)
    sim.daemon_reload()
    after = scope.rules()
    assert {one.rule: one.after_reload for one in found.comparisons} == {
        one.rule: after.covers(one.rule) for one in found.comparisons
    }
    assert len(found.comparisons) == len(BASICS) + 4


async def test_protected(sim: SimNode) -> None:
    """The entry that covers the device is named, and which other rules matter is told apart."""
    scope = sim.scope(device_allow=[*BASICS, ENTRY], hook_rules=["c 189:* rwm"])
    found = await explain(sim, scope)
    assert found.container.state is State.PROTECTED
    assert of(found, GPU0).entry == f"DeviceAllow={ENTRY}"
    assert of(found, "c 136:* rwm").entry == "DeviceAllow=char-pts rwm"
    assert [str(one.rule) for one in found.comparisons if one.matters] == [GPU0, "c 189:* rwm"]


async def test_what_a_policy_adds_is_named(sim: SimNode) -> None:
    """Standard devices need no entry under DevicePolicy=closed."""
    scope = sim.scope(device_allow=[ENTRY], policy="closed")
    assert of(await explain(sim, scope), "c 1:3 rwm").entry == "DevicePolicy=closed"


async def test_undeclarable(sim: SimNode) -> None:
    """What has no spelling is marked as what hinders."""
    found = await explain(sim, sim.scope(hook_rules=[ODD]))
    assert of(found, ODD).hinders
    assert "no spelling" in (found.container.reason or "")
    assert "`*` for c *:7 rw" in advice(found)[0]


@pytest.mark.parametrize("left", ["DeviceAllow=/dev/null rwm", ""])
async def test_files_that_say_something_else(sim: SimNode, left: str) -> None:
    """An administrator's drop-in overrules memory at the next reload, and is named; also one that leaves nothing."""
    scope = sim.scope(device_allow=[*BASICS, ENTRY])
    drop_in = sim.path(f"/etc/systemd/system/{scope.name}.d/x.conf")
    drop_in.parent.mkdir(parents=True)
    drop_in.write_text(f"[Scope]\nDeviceAllow=\n{left}\n")
    found = await explain(sim, scope)
    one = of(found, GPU0)
    assert (one.memory, one.disk, one.declared, one.after_reload) == (True, False, False, False)
    assert found.declaration is not None
    assert found.declaration.foreign == (str(drop_in),)
    sim.daemon_reload()
    assert not scope.rules().covers(one.rule)


async def test_lost_while_the_daemon_was_stopped(sim: SimNode, station: Station) -> None:
    """The ledger knows; the scope itself denies, and a repair is the advice."""
    scope = sim.scope(hook_rules=[GPU0])
    post = await station(sim, NOT_BEFORE_A_LOSS)
    await post.becomes(scope, State.AT_RISK)
    await post.stop()
    sim.daemon_reload()
    found = await explain(sim, scope)
    assert found.container.state is State.LOST
    assert (of(found, GPU0).effective, of(found, GPU0).denied_by) == (False, (Denier(scope.group, curable=True),))
    assert advice(found)[0].startswith("`gpuguard repair ")


async def test_denied_above(sim: SimNode, station: Station) -> None:
    """The slice that denies is named, and no declaration is said to help."""
    slice_ = sim.path("/sys/fs/cgroup/devices/system.slice")
    for file, text in (("deny", "a"), ("allow", "c 1:* rwm"), ("allow", "c 136:* rwm"), ("allow", GPU0)):
        (slice_ / f"devices.{file}").write_text(text)
        sim.control("settle")
    scope = sim.scope(device_allow=[*BASICS, ENTRY])
    post = await station(sim)
    await post.becomes(scope, State.PROTECTED)
    await post.stop()
    (slice_ / "devices.deny").write_text(GPU0)
    sim.control("settle")
    found = await explain(sim, scope)
    one = of(found, GPU0)
    assert (one.denied_by, one.memory, one.after_reload) == ((Denier("/system.slice"),), True, False)


async def test_under_a_shield(sim: SimNode) -> None:
    """A shield keeps what is in force, also over a reload."""
    scope = sim.scope(hook_rules=[GPU0])
    (scope.cgroup / SHIELD).mkdir()
    found = await explain(sim, scope)
    assert (found.shield, of(found, GPU0).after_reload) == (True, True)


@pytest.mark.invariant(4)
async def test_without_a_bus(sim: SimNode) -> None:
    """What systemd would do cannot be told: neither declared nor lost."""
    scope = sim.scope(hook_rules=[GPU0])
    sim.stop_bus()
    found = await explain(sim, scope)
    one = of(found, GPU0)
    assert (one.effective, one.declared, one.memory, one.after_reload, one.entry) == (True, None, None, None, None)
    assert (found.node.systemd, found.declaration) == (None, None)
    assert "cannot be asked" in (found.trouble or "")


async def test_unrestricted(sim: SimNode) -> None:
    """A privileged container has no lists to compare."""
    found = await explain(sim, sim.scope(device_allow=[], policy="auto"))
    assert (found.container.state, found.comparisons) == (State.UNRESTRICTED, ())


async def test_released(sim: SimNode) -> None:
    """A device that was released and is still in force is told as such."""
    scope = sim.scope(hook_rules=[GPU0, "c 195:1 rw"])
    await once.release(settings(sim), scope.name, ["c 195:1"])
    one = of(await explain(sim, scope), "c 195:1 rw")
    assert (one.entitled, one.released, one.effective, one.matters) == (False, True, True, True)


async def test_beside_a_daemon(sim: SimNode, station: Station) -> None:
    """A daemon's mode and settings count, also with a bad file; without one that is an error."""
    scope = sim.scope(hook_rules=[GPU0])
    post = await station(sim, NOT_BEFORE_A_LOSS)
    await post.becomes(scope, State.AT_RISK)
    fault = ConfigError("gpuguard.toml: not TOML")
    async with desk(sim, post):
        found = await once.explain(settings(sim), scope.name, fault)
    assert (found.node.daemon, found.guards, found.declares) == ("running", True, False)
    with pytest.raises(ConfigError):
        await once.explain(settings(sim), scope.name, fault)


async def test_an_unknown_container(sim: SimNode) -> None:
    """Nothing is explained of what is not there."""
    with pytest.raises(NotFoundError):
        await once.explain(settings(sim), "nosuch")


def test_what_is_not_known_is_told() -> None:
    """Of the specification, of the request, and of the name."""
    record = RuntimeRecord(identity=Identity(doubt="no name"), doubts=("one", "two"), refusal="refused")
    assert guards._doubts(record) == ("refused", "one", "two", "no name")
    assert guards._doubts(RuntimeRecord(trouble="not believed")) == ("not believed",)
