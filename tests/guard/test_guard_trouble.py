"""The guard where nothing is certain: torn and unreadable lists, a systemd that is busy, gone, or told otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import pytest
from dbus_next.signature import Variant

from gpuguard.errors import BusError
from gpuguard.guard.mend import Deed, Mender, Target
from gpuguard.kernel.devices_v1 import SHIELD
from gpuguard.model.rule import Rule
from gpuguard.model.state import State
from gpuguard.model.unit import DeviceAllow
from gpuguard.systemd import manager as systemd
from tests.guard.account import Account
from tests.guard.conftest import Station
from tests.guard.overruling import overrule
from tests.guard.post import NEVER
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope

GPU0 = "c 195:0 rw"
ENTRY = "/dev/char/195:0 rw"
NOT_BEFORE_A_LOSS = {"guard": {"declare": False}}


@contextmanager
def listing(scope: SimScope, text: str) -> Iterator[None]:
    """Have devices.list say something else for a while."""
    path = scope.cgroup / "devices.list"
    genuine = path.read_text()
    path.write_text(text)
    try:
        yield
    finally:
        path.write_text(genuine)


@pytest.mark.invariant(4)
class TestUnknown:
    """What cannot be told is not taken for a loss."""

    async def test_a_torn_look_is_no_loss(self, sim: SimNode, station: Station) -> None:
        """A list that systemd is just writing, whole again before the second look, is no loss and no deed."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"guard": {"poll_interval": NEVER}})
        await post.becomes(scope, State.PROTECTED)
        await post.quiet()
        account, told = Account(sim, scope), len(post.log)
        genuine = (scope.cgroup / "devices.list").read_text()
        for text in ("", "c 1:3 rwm\n"):
            (scope.cgroup / "devices.list").write_text(text)
            looking = asyncio.ensure_future(post.guard.look(scope.group, fresh=False))
            await asyncio.sleep(0)
            assert post.of(scope).plan.look_again
            (scope.cgroup / "devices.list").write_text(genuine)
            await looking
            assert post.state(scope) is State.PROTECTED
        assert (account.written(), account.declared(), post.log[told:]) == ([], [], [])
        assert post.value("gpuguard_drift_total", kind="lost") == 0

    async def test_a_reload_with_a_long_gap_ends_whole(self, sim: SimNode, station: Station) -> None:
        """However long systemd is between its deny-all and its allows, what it declares is whole afterwards."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        await post.sources_up()
        before, account = scope.rules(), Account(sim, scope)
        sim.set_gap(0.3)
        await asyncio.to_thread(sim.daemon_reload)
        await post.rounds(2)
        assert scope.rules() == before
        assert post.state(scope) is State.PROTECTED
        assert account.declared() == []

    async def test_an_unreadable_list_is_no_loss(self, sim: SimNode, station: Station) -> None:
        """While the list makes no sense nothing is lost, done, learnt or forgotten; it is told once."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        entitled, account = post.of(scope).entitled, Account(sim, scope)
        with listing(scope, "nonsense\n"):
            await post.becomes(scope, State.OPAQUE)
            await post.rounds(2)
        await post.becomes(scope, State.PROTECTED)
        assert post.of(scope).entitled == entitled
        assert (account.written(), account.declared()) == ([], [])
        assert post.kinds() == ["found", "declared", "blind"]
        assert "devices.list makes no sense" in post.events("blind")[0]["reason"]

    async def test_an_outage_is_not_ended_by_an_unreadable_list(self, sim: SimNode, station: Station) -> None:
        """An open loss stays open while nobody can tell, and closes with the next list that is whole."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, enforce=False)
        await post.becomes(scope, State.AT_RISK)
        scope.write_rules([GPU0], verb="deny")
        await post.becomes(scope, State.LOST)
        with listing(scope, "nonsense\n"):
            await post.becomes(scope, State.OPAQUE)
        await post.becomes(scope, State.LOST)
        assert post.events("repaired") == []
        scope.write_rules([GPU0])
        await post.becomes(scope, State.AT_RISK)
        assert [len(post.events(kind)) for kind in ("lost", "repaired")] == [1, 1]

    async def test_what_was_in_vain_stays_so(self, sim: SimNode, station: Station) -> None:
        """A list that cannot be read for a while is no reason to try again what systemd was told in vain."""
        overrule(sim)
        scope = sim.scope(hook_rules=[GPU0])
        account = Account(sim, scope)
        post = await station(sim)
        await post.until(lambda: post.events("declare_failed"), "it was not told")
        with listing(scope, "nonsense\n"):
            await post.becomes(scope, State.OPAQUE)
        await post.becomes(scope, State.AT_RISK)
        await post.rounds(2)
        assert len(account.declared()) == 1

    async def test_no_filter_for_a_while_teaches_nothing(self, sim: SimNode, station: Station) -> None:
        """A container whose filter goes is unrestricted, keeps its entitlement, and is not touched."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        entitled, account = post.of(scope).entitled, Account(sim, scope)
        with listing(scope, "a *:* rwm\n"):
            await post.becomes(scope, State.UNRESTRICTED)
        await post.becomes(scope, State.PROTECTED)
        assert post.of(scope).entitled == entitled
        assert (account.written(), account.declared()) == ([], [])


class TestSystemd:
    """systemd that does not answer, or not as hoped."""

    async def test_the_bus_goes_and_comes_back(self, sim: SimNode, station: Station) -> None:
        """Without a bus a loss is written back; when the bus is back what is at risk is declared."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.sources_up()
        sim.stop_bus()
        await post.until(lambda: len(post.events("source_down")) == 3, "the sources' end was not told")
        scope.write_rules([GPU0], verb="deny")
        await post.until(lambda: post.events("repaired"), "the loss was not repaired")
        assert GPU0 in scope.rules().text()
        sim.start_bus()
        await post.becomes(scope, State.PROTECTED)
        await post.until(lambda: len(post.events("source_up")) == 3, "the sources' return was not told")

    @pytest.mark.invariant(2)
    async def test_an_answer_that_is_late_takes_nothing(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While systemd is too busy to answer, the shield stays and so do all rules; it goes when it has answered."""
        monkeypatch.setattr(systemd, "DECLARE_TIMEOUT", 0.1)
        monkeypatch.setattr("gpuguard.guard.guard._OLD_VIEW", 60.0)  # systemd would be asked first, and is busy
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"guard": {"settle": "4s"}})  # the sources, and the test, may come late
        await post.until(lambda: post.state(scope) is State.SETTLING, "it was not seen settling")
        await post.sources_up()
        before, account = scope.rules(), Account(sim, scope)
        sim.busy(8.0)
        await post.until(lambda: post.events("declare_failed"), "nothing was declared")
        assert "systemd's answer is outstanding" in post.events("declare_failed")[0]["reason"]
        assert (scope.cgroup / SHIELD).is_dir()
        await post.becomes(scope, State.PROTECTED)
        await post.until(lambda: not (scope.cgroup / SHIELD).exists(), "the shield was not removed")
        assert scope.rules() == before
        assert "deny a" not in account.by_systemd()
        assert post.events("lost") == []

    @pytest.mark.invariant(8)
    async def test_an_administrator_s_drop_in_is_not_fought(self, sim: SimNode, station: Station) -> None:
        """Where a drop-in takes away what is declared, one declaration is made, and the container is at risk."""
        drop_in = overrule(sim)
        scope = sim.scope(hook_rules=[GPU0])
        account = Account(sim, scope)
        post = await station(sim)
        await post.until(lambda: post.events("declare_failed"), "it was not told")
        await post.rounds(5)
        assert post.state(scope) is State.AT_RISK
        assert len(account.declared()) == 1
        assert account.written() == []
        assert "the unit's files on disk" in post.events("declare_failed")[0]["reason"]
        drop_in.unlink()
        sim.daemon_reload()
        await post.becomes(scope, State.PROTECTED)
        assert GPU0 in scope.rules().text()

    async def test_a_declaration_that_was_undone_at_once_is_made_again(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another program that has systemd forget all devices in the same moment is not systemd's last word."""
        scope = sim.scope(hook_rules=[GPU0])
        declare = Mender.declare
        deeds: list[Deed] = []

        async def disturbed(
            self: Mender,
            target: Target,
            entries: tuple[DeviceAllow, ...],
            lost: Iterable[Rule] = (),
            *,
            keep: bool = False,
        ) -> Deed:
            deeds.append(await declare(self, target, entries, lost, keep=keep))
            if len(deeds) == 1:
                await asyncio.to_thread(sim.set_property, scope.name, "DeviceAllow", Variant("a(ss)", []))
            return deeds[-1]

        monkeypatch.setattr(Mender, "declare", disturbed)
        account = Account(sim, scope)
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        assert [deed.error for deed in deeds] == [None, None]
        assert len(account.declared()) == 2
        assert GPU0 in scope.rules().text()

    @pytest.mark.invariant(8)
    async def test_what_systemd_refuses_is_not_asked_again(
        self, sim: SimNode, station: Station, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A refusal is told once, with systemd's words, and nothing is tried while systemd knows the same."""
        asked: list[str] = []

        async def refuse(_: systemd.Manager, unit: str, entries: tuple[DeviceAllow, ...]) -> None:
            asked.append(f"{unit} {entries[0]}")
            raise BusError("Unit is masked")

        monkeypatch.setattr(systemd.Manager, "allow_devices", refuse)
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.until(lambda: post.events("declare_failed"), "it was not told")
        await post.rounds(5)
        assert asked == [f"{scope.name} {ENTRY}"]
        assert "systemd refuses: Unit is masked" in post.events("declare_failed")[0]["reason"]
        assert post.state(scope) is State.AT_RISK

    async def test_a_drop_in_that_was_deleted_is_made_again(self, sim: SimNode, station: Station) -> None:
        """A container whose declaration was deleted from disk is at risk, and is declared again."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        account = Account(sim, scope)
        scope.drop_in.unlink()
        await post.until(account.declared, "it was not declared again")
        await post.becomes(scope, State.PROTECTED)
        sim.daemon_reload()
        await post.rounds(2)
        assert (GPU0 in scope.rules().text(), account.written()) == (True, [])

    @pytest.mark.invariant(9)
    async def test_a_unit_with_a_program_of_its_own_gets_no_entry(self, sim: SimNode, station: Station) -> None:
        """A unit that BPFProgram= gates is at risk with that reason; what it loses is written back."""
        scope = sim.scope(hook_rules=[GPU0])
        sim.set_property(scope.name, "BPFProgram", Variant("a(ss)", [["device", "/sys/fs/bpf/gate"]]))
        account = Account(sim, scope)
        post = await station(sim)
        await post.becomes(scope, State.AT_RISK)
        assert "its devices are gated by BPFProgram=" in (post.of(scope).reason or "")
        sim.daemon_reload()
        await post.until(lambda: post.events("repaired"), "the loss was not repaired")
        assert account.declared() == []
        assert GPU0 in scope.rules().text()

    async def test_what_has_no_spelling_is_given_back_each_time(self, sim: SimNode, station: Station) -> None:
        """A rule that systemd cannot express stays at risk, undeclarable, and is written back after each reload."""
        scope = sim.scope(hook_rules=["c *:7 rw", GPU0])
        account = Account(sim, scope)
        post = await station(sim)
        await post.becomes(scope, State.AT_RISK)
        assert post.of(scope).reason == "undeclarable: systemd has no spelling for c *:7 rw"
        for number in range(1, 3):
            sim.daemon_reload()
            await post.until(lambda number=number: len(post.events("repaired")) == number, "it was not repaired")
        assert account.written() == ["allow c *:7 rw"] * 2
        assert account.declared() == [[ENTRY]]

    @pytest.mark.invariant(2)
    async def test_other_rules_survive_the_declaration(self, sim: SimNode, station: Station) -> None:
        """Rules outside the guarded classes that only the kernel knew are in force and declared afterwards."""
        scope = sim.scope(hook_rules=[GPU0, "c 10:200 rwm", "c 10:229 rw"])
        before = scope.rules()
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        sim.daemon_reload()
        await post.rounds(1)
        assert scope.rules() == before
        for rule in ("c 1:3 rwm", "c 1:5 rwm", "c 5:0 rwm", "c 136:* rwm"):
            assert scope.rules().covers(Rule.parse(rule))
