"""The guard's work done once, for the commands, with and without a daemon."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gpuguard.errors import ConfigError, LedgerError, NotFoundError, RuntimeFileError
from gpuguard.guard import control, once, verbs
from gpuguard.guard.control import ControlServer
from gpuguard.guard.lock import guard_lock
from gpuguard.guard.node_records import NodeRecords
from gpuguard.guard.scope import Scope
from gpuguard.model.runtime_record import RuntimeRecord
from gpuguard.model.state import State
from tests.guard.account import Account
from tests.guard.conftest import Station, patient
from tests.guard.post import Post, Tables, settings
from tests.lab.scope import BASICS
from tests.lab.sim.node import SimNode

GPU0, CTL = "c 195:0 rw", "c 195:255 rw"
ENTRY = "/dev/char/195:0 rw"
LEDGER = "/run/gpuguard/ledger"
NOT_BEFORE_A_LOSS: Tables = {"guard": {"declare": False}}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be patient with the simulated kernel."""
    patient(monkeypatch)


@pytest.fixture
async def daemon(sim: SimNode, station: Station) -> AsyncIterator[Post]:
    """Return a guard that can be asked over the control socket."""
    post = await station(sim)
    async with desk(sim, post):
        yield post


@contextlib.asynccontextmanager
async def desk(sim: SimNode, post: Post) -> AsyncIterator[None]:
    """Have a guard answer on the control socket."""
    server = ControlServer(sim.path("/run/gpuguard"), verbs.Desk(post.assembly, post.describe).answer)
    await server.start()
    yield
    await server.stop()


class TestLook:
    """`gpuguard status` and `gpuguard check`."""

    @pytest.mark.invariant(4)
    async def test_says_when_it_may_not_read_what_runtimes_say(
        self, sim: SimNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """To anybody but root a container that was stripped before would look like one without a GPU."""

        async def refuse(_records: NodeRecords, _scope: Scope) -> RuntimeRecord:
            raise RuntimeFileError("/run/x/config.json: cannot be read: Permission denied")

        monkeypatch.setattr(NodeRecords, "read", refuse)
        sim.scope()
        assert (await once.look(settings(sim))).containers == ()
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        with pytest.raises(RuntimeFileError, match="Permission denied; are you root"):
            await once.look(settings(sim))

    @pytest.mark.invariant(8)
    async def test_tells_of_the_node_and_touches_nothing(self, sim: SimNode) -> None:
        """Without a daemon what is in force counts as given; nothing is written, called, or left on disk."""
        scope, safe = sim.scope(hook_rules=[GPU0]), sim.scope(device_allow=[*BASICS, ENTRY])
        accounts = [Account(sim, one) for one in (scope, safe)]
        node = await once.look(settings(sim))
        assert (node.cgroup, node.systemd, node.mode, node.daemon) == ("v1", 252, "enforce", "stopped")
        assert {one.scope: one.state for one in node.containers} == {
            scope.name: State.AT_RISK,
            safe.name: State.PROTECTED,
        }
        assert [account.written() + account.declared() for account in accounts] == [[], []]
        assert list(sim.path("/run/gpuguard").iterdir()) == []

    async def test_knows_the_ledger(self, sim: SimNode, station: Station) -> None:
        """What was learnt before is used: a container that lost its devices is lost."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.stop()
        sim.daemon_reload()
        (container,) = (await once.look(settings(sim))).containers
        assert container.state is State.LOST
        assert [(device.effective, device.declared) for device in container.devices] == [(False, False)]

    async def test_without_a_bus(self, sim: SimNode) -> None:
        """Without a bus systemd's version and the declared list are unknown, not false."""
        sim.scope(hook_rules=[GPU0])
        sim.stop_bus()
        node = await once.look(settings(sim))
        assert node.systemd is None
        (container,) = node.containers
        assert (container.state, container.devices[0].declared) == (State.AT_RISK, None)

    async def test_beside_a_daemon(self, sim: SimNode, daemon: Post) -> None:
        """A running daemon is seen."""
        scope = sim.scope(hook_rules=[GPU0])
        await daemon.becomes(scope, State.PROTECTED)
        node = await once.look(settings(sim))
        assert (node.daemon, [one.state for one in node.containers]) == ("running", [State.PROTECTED])


class TestBesideADaemon:
    """What commands take from a daemon that runs."""

    async def test_its_mode_counts(self, sim: SimNode, station: Station) -> None:
        """A daemon that only observes is told as such, whatever the file says."""
        post = await station(sim, enforce=False)
        async with desk(sim, post):
            node = await once.look(settings(sim))
        assert (node.daemon, node.mode, node.trouble) == ("running", "observe", None)

    async def test_its_settings_count(self, sim: SimNode, station: Station) -> None:
        """What it does not guard is not shown, although the file says otherwise by now."""
        sim.scope(hook_rules=[GPU0])
        post = await station(sim, {"devices": {"classes": ["infiniband"]}})
        async with desk(sim, post):
            assert (await once.look(settings(sim))).containers == ()
            assert (await once.repair(settings(sim), [], dry_run=True)).repairs == ()
        assert len((await once.look(settings(sim))).containers) == 1

    async def test_its_pauses_are_told(self, sim: SimNode, station: Station) -> None:
        """A container that it gives nothing back to for now says so in `status` and `explain`."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        post.of(scope).backoff.until = time.monotonic() + 3600.0
        scope.write_rules([GPU0], verb="deny")
        await post.becomes(scope, State.LOST)
        async with desk(sim, post):
            (container,) = (await once.look(settings(sim))).containers
            explained = (await once.explain(settings(sim), scope.name)).container
        for found in (container, explained):
            assert found.state is State.LOST
            assert "repairs are paused until " in (found.reason or "")

    async def test_they_make_up_for_a_bad_file(self, sim: SimNode, station: Station) -> None:
        """With a bad file commands work as long as a daemon has good settings, and tell; without one they refuse."""
        scope = sim.scope(hook_rules=[GPU0])
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        fault = ConfigError("gpuguard.toml: not TOML")
        async with desk(sim, post):
            node = await once.look(settings(sim), fault)
            assert (node.daemon, node.trouble) == ("running", "gpuguard.toml: not TOML")
            assert (await once.repair(settings(sim), [], dry_run=True, fault=fault)).repairs[0].settled
            assert (await once.repair(settings(sim), [], dry_run=False, fault=fault)).repairs[0].settled
            assert (await once.release(settings(sim), scope.name, [], fault=fault)).devices == (GPU0,)
        with pytest.raises(ConfigError, match="not TOML"):
            await once.look(settings(sim), fault)
        for dry_run in (True, False):
            with pytest.raises(ConfigError, match="not TOML"):
                await once.repair(settings(sim), [], dry_run=dry_run, fault=fault)
        with pytest.raises(ConfigError, match="not TOML"):
            await once.release(settings(sim), scope.name, [], fault=fault)

    @pytest.mark.invariant(4)
    async def test_one_that_hangs_is_not_known_to_run(self, sim: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
        """Somebody listens and does not answer: neither running nor stopped, and the containers are shown."""
        monkeypatch.setattr(control, "_REQUEST_TIME", 0.2)
        sim.scope(hook_rules=[GPU0])
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(sim.path("/run/gpuguard") / control.SOCKET))
            silent.listen(8)
            node = await once.look(settings(sim))
        assert (node.daemon, len(node.containers)) == ("unknown", 1)
        assert "does not answer" in (node.trouble or "")


class TestRepair:
    """`gpuguard repair`."""

    async def test_without_a_daemon(self, sim: SimNode, station: Station) -> None:
        """What was lost is given back and declared, and the report tells from what to what, and how."""
        scope = sim.scope(hook_rules=[GPU0, CTL])
        post = await station(sim, NOT_BEFORE_A_LOSS)
        await post.becomes(scope, State.AT_RISK)
        await post.stop()
        before = scope.rules()
        sim.daemon_reload()
        report = await once.repair(settings(sim), [], dry_run=False)
        (repair,) = report.repairs
        assert (repair.before, repair.after, repair.error) == (State.LOST, State.PROTECTED, None)
        assert repair.deeds == (f"write {GPU0}", f"write {CTL}", f"declare {ENTRY}", "declare /dev/char/195:255 rw")
        assert scope.rules() == before

    async def test_declares_a_container_that_nobody_knew(self, sim: SimNode) -> None:
        """Without daemon and ledger it waits until a container has settled, and declares it."""
        scope = sim.scope(hook_rules=[GPU0])
        account = Account(sim, scope)
        (repair,) = (await once.repair(settings(sim), [scope.name], dry_run=False)).repairs
        assert repair.after is State.PROTECTED
        assert account.declared() == [[ENTRY]]
        assert list(sim.path(LEDGER).iterdir()) != []

    @pytest.mark.parametrize("with_ledger", [False, True])
    async def test_dry_run_says_what_would_be_done(self, sim: SimNode, station: Station, with_ledger: bool) -> None:
        """A dry run names the deeds and does none."""
        scope = sim.scope(hook_rules=[GPU0])
        if with_ledger:
            post = await station(sim, NOT_BEFORE_A_LOSS)
            await post.becomes(scope, State.AT_RISK)
            await post.stop()
            sim.daemon_reload()
        account = Account(sim, scope)
        report = await once.repair(settings(sim), [], dry_run=True)
        (repair,) = report.repairs
        assert report.dry_run
        assert repair.deeds == ((f"write {GPU0}", f"declare {ENTRY}") if with_ledger else (f"declare {ENTRY}",))
        assert (repair.before, repair.after) == (State.LOST if with_ledger else State.AT_RISK, State.PROTECTED)
        assert repair.settled
        assert (account.written(), account.declared()) == ([], [])

    async def test_dry_run_tells_what_would_be_left(self, sim: SimNode, station: Station) -> None:
        """What has no spelling would be given back and stay at risk; a healthy container needs nothing."""
        scope, safe = sim.scope(hook_rules=["c *:7 rw"]), sim.scope(device_allow=[*BASICS, ENTRY])
        post = await station(sim)
        await post.becomes(scope, State.AT_RISK)
        await post.becomes(safe, State.PROTECTED)
        await post.stop()
        sim.daemon_reload()
        repairs = (await once.repair(settings(sim), [], dry_run=True)).repairs
        found = {repair.scope: repair for repair in repairs}
        planned = found[scope.name]
        assert (planned.before, planned.after, planned.deeds) == (State.LOST, State.AT_RISK, ("write c *:7 rw",))
        assert not planned.settled
        healthy = found[safe.name]
        assert (healthy.before, healthy.after, healthy.deeds) == (State.PROTECTED, State.PROTECTED, ())
        assert healthy.settled

    async def test_by_the_daemon(self, sim: SimNode, daemon: Post) -> None:
        """A running daemon does it itself: nobody else writes."""
        scope = sim.scope(hook_rules=[GPU0])
        await daemon.becomes(scope, State.PROTECTED)
        (repair,) = (await once.repair(settings(sim), [scope.name], dry_run=False)).repairs
        assert (repair.before, repair.after, repair.deeds) == (State.PROTECTED, State.PROTECTED, ())

    async def test_of_an_unknown_container(self, sim: SimNode) -> None:
        """A name that means nothing is not found."""
        with pytest.raises(NotFoundError):
            await once.repair(settings(sim), ["nobody"], dry_run=False)

    async def test_waits_for_another_guard(self, sim: SimNode, monkeypatch: pytest.MonkeyPatch) -> None:
        """While somebody else is at work, without answering, it gives up and says so."""
        monkeypatch.setattr(once, "_PATIENCE", 0.1)
        with guard_lock(Path(sim.config_paths()["run"]), 0.0), pytest.raises(LedgerError, match="another gpuguard"):
            await once.repair(settings(sim), [], dry_run=False)


class TestRelease:
    """`gpuguard release`."""

    async def test_without_a_daemon(self, sim: SimNode, station: Station) -> None:
        """A release without a daemon holds for the next one."""
        scope = sim.scope(hook_rules=[GPU0, CTL])
        report = await once.release(settings(sim), scope.name, ["c 195:0"])
        assert report.devices == (GPU0,)
        post = await station(sim)
        await post.becomes(scope, State.PROTECTED)
        assert post.entitled(scope) == {CTL}

    async def test_by_the_daemon(self, sim: SimNode, daemon: Post) -> None:
        """A running daemon releases itself, at once."""
        scope = sim.scope(hook_rules=[GPU0, CTL])
        await daemon.becomes(scope, State.PROTECTED)
        await once.release(settings(sim), scope.name, ["c 195:255"])
        assert daemon.entitled(scope) == {GPU0}
