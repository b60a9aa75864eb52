"""The daemon as a process: it starts, stops, reads its configuration again, dies, and is only one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any, Optional

import pytest

from gpuguard.guard import control
from tests.guard.account import Account
from tests.lab.daemon import Daemon
from tests.lab.poll import until
from tests.lab.sim.node import SimNode
from tests.lab.sim.scope import SimScope
from tests.running import PATIENCE, Gpuguard, await_event, await_sentinel, connected, events, scrape

GPU0, CTL = "c 195:0 rw", "c 195:255 rw"
# Taking single rules may be meant: whether it is depends on whether the sentinel sees the list of before or after.
EVERYTHING = ("a",)
# Gives up at once where another one holds the lock, not after the 15 s that a command may need.
IMPATIENT = (
    "import sys; from gpuguard import daemon; daemon._LOCK_PATIENCE = 0.0\n"
    "from gpuguard.cli.main import main; sys.exit(main(sys.argv[1:]))"
)


@pytest.fixture
def gpuguard(sim: SimNode) -> Gpuguard:
    """Return the way to a daemon; it is killed with its node."""
    return Gpuguard(sim)


def protected(gpuguard: Gpuguard, daemon: Daemon, **scope: Any) -> SimScope:  # noqa: ANN401 - SimNode.scope's
    """Start a container and wait until it is declared."""
    before = len(events(daemon, "declared"))
    made = gpuguard.node.scope(**scope)
    await_event(daemon, "declared", before + 1)
    return made


class TestLife:
    """Start and stop."""

    def test_guards_and_ends_with_0(self, gpuguard: Gpuguard) -> None:
        """It finds a container that was there, gives back what is lost, and ends with 0 at SIGTERM."""
        scope = gpuguard.node.scope(hook_rules=[GPU0, CTL])
        gpuguard.write(guard={"settle": "50ms", "poll_interval": "100ms", "declare": False})
        daemon = gpuguard.start()
        await_event(daemon, "at_risk")
        await_sentinel(daemon, scope)
        before = scope.rules()
        gpuguard.node.daemon_reload()
        await_event(daemon, "declared")
        assert scope.rules() == before
        assert daemon.stop() == 0
        assert [entry["kind"] for entry in events(daemon, "started", "lost", "repaired", "stopped")] == [
            "started",
            "lost",
            "repaired",
            "stopped",
        ]
        assert "Traceback" not in daemon.output()

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_ends_while_systemd_does_not_answer(self, gpuguard: Gpuguard, number: int) -> None:
        """A stop in the middle of the first look is obeyed at once."""
        gpuguard.node.scope(hook_rules=[GPU0])
        gpuguard.node.busy(60)
        daemon = gpuguard.spawn()
        until(lambda: gpuguard.node.path("/run/gpuguard/control.sock").exists(), PATIENCE, "its control socket")
        daemon.signal(number)
        assert daemon.wait(PATIENCE) == 0
        assert "Traceback" not in daemon.output()

    def test_starts_without_a_bus(self, gpuguard: Gpuguard) -> None:
        """Without a bus it guards by the clock, and finds systemd when it comes."""
        gpuguard.node.stop_bus()
        daemon = gpuguard.start()
        assert events(daemon, "started")[0]["systemd"] == "unknown"
        gpuguard.node.start_bus()
        protected(gpuguard, daemon, hook_rules=[GPU0])

    @pytest.mark.invariant(7)
    def test_its_end_changes_nothing(self, gpuguard: Gpuguard) -> None:
        """A stop and a kill leave every list, and what systemd has, as they were."""
        daemon = gpuguard.start()
        scope = protected(gpuguard, daemon, hook_rules=[GPU0, CTL])
        before, account = scope.rules(), Account(gpuguard.node, scope)
        daemon.stop()
        assert (scope.rules(), account.written(), account.declared()) == (before, [], [])
        daemon = gpuguard.start()
        daemon.kill()
        assert (scope.rules(), account.written(), account.declared()) == (before, [], [])
        gpuguard.node.daemon_reload()
        assert scope.rules() == before

    @pytest.mark.invariant(7)
    def test_resumes_after_a_kill(self, gpuguard: Gpuguard) -> None:
        """What a killed daemon had learnt the next one gives back; what the dead one left is no hindrance."""
        scope = gpuguard.node.scope(hook_rules=[GPU0, CTL])
        before = scope.rules()
        gpuguard.write(guard={"settle": "50ms", "poll_interval": "100ms", "declare": False})
        daemon = gpuguard.start()
        await_event(daemon, "at_risk")
        daemon.kill()
        assert gpuguard.node.path("/run/gpuguard/control.sock").exists()
        (gpuguard.node.path("/run/gpuguard/ledger") / "1.json").write_text("garbage")
        gpuguard.node.daemon_reload()
        daemon = gpuguard.start()
        await_event(daemon, "declared")
        assert scope.rules() == before
        assert len(events(daemon, "ledger_damaged")) == 1

    def test_observe_only_touches_nothing(self, gpuguard: Gpuguard) -> None:
        """With --observe-only it tells and does nothing, whatever the configuration says."""
        scope = gpuguard.node.scope(hook_rules=[GPU0])
        daemon = gpuguard.start("--observe-only")
        await_event(daemon, "found")
        account = Account(gpuguard.node, scope)
        gpuguard.node.daemon_reload()
        await_event(daemon, "lost")
        await_event(daemon, "observed", 2)
        assert (account.written(), account.declared()) == ([], [])
        assert gpuguard.command("status").stdout.startswith("cgroup v1, systemd 252, mode observe, daemon running\n")
        checked = gpuguard.command("check")
        assert checked.stdout.startswith("GPUGUARD CRITICAL - 1 lost")
        assert " (daemon in observe mode) | " in checked.stdout


class TestConfiguration:
    """SIGHUP, and what does not start."""

    def test_is_read_again(self, gpuguard: Gpuguard) -> None:
        """At SIGHUP the new settings hold, and what was learnt before is not lost."""
        scope = gpuguard.node.scope(hook_rules=[GPU0])
        gpuguard.write(guard={"settle": "50ms", "poll_interval": "100ms", "mode": "observe"})
        daemon = gpuguard.start()
        await_event(daemon, "found")
        gpuguard.node.daemon_reload()
        await_event(daemon, "lost")
        gpuguard.write()
        daemon.signal(signal.SIGHUP)
        await_event(daemon, "config_reloaded")
        await_event(daemon, "declared")
        assert GPU0 in scope.rules().text()
        modes = [(entry["kind"], entry["mode"]) for entry in events(daemon, "started", "config_reloaded")]
        assert modes == [("started", "observe"), ("config_reloaded", "enforce")]
        assert [entry["kind"] for entry in events(daemon, "found", "lost", "repaired")] == ["found", "lost", "repaired"]
        assert daemon.stop() == 0

    def test_is_read_again_without_a_gap_in_the_metrics(self, gpuguard: Gpuguard) -> None:
        """The endpoint's settings did not change: a scrape at any moment is answered, with the containers."""
        daemon = gpuguard.start()
        protected(gpuguard, daemon, hook_rules=[GPU0])
        until(lambda: 'state="protected"} 1.0' in scrape(gpuguard.metrics, "/metrics"), PATIENCE, "the container")
        inode = gpuguard.metrics.stat().st_ino
        for number in range(1, 6):
            gpuguard.write(guard={"settle": f"{50 + number}ms", "poll_interval": "100ms"})
            daemon.signal(signal.SIGHUP)
            while len(events(daemon, "config_reloaded")) < number:
                assert 'gpuguard_containers{state="protected"} 1.0' in scrape(gpuguard.metrics, "/metrics")
        assert gpuguard.metrics.stat().st_ino == inode
        assert len(events(daemon, "started")) == len(events(daemon, "found")) == 1

    def test_is_read_again_without_a_moment_of_absence(self, gpuguard: Gpuguard) -> None:
        """A command that asks in the middle of a reload finds a daemon that answers."""
        daemon = gpuguard.start()
        run = gpuguard.node.path("/run/gpuguard")
        for number in range(1, 6):
            gpuguard.write(guard={"settle": f"{50 + number}ms", "poll_interval": "100ms"})
            daemon.signal(signal.SIGHUP)
            while f'settle = "{50 + number}ms"' not in asyncio.run(control.daemon(run)).settings:
                pass

    def test_that_is_unchanged_disturbs_nobody(self, gpuguard: Gpuguard) -> None:
        """A SIGHUP without news is told, and neither the control socket nor anything else is made anew."""
        daemon = gpuguard.start()
        socket_ = gpuguard.node.path("/run/gpuguard/control.sock")
        inode = socket_.stat().st_ino
        daemon.signal(signal.SIGHUP)
        await_event(daemon, "config_reloaded")
        protected(gpuguard, daemon, hook_rules=[GPU0])
        assert socket_.stat().st_ino == inode
        assert len(events(daemon, "started")) == 1

    def test_of_other_paths_wants_a_restart(self, gpuguard: Gpuguard, tmp_path: Path) -> None:
        """The lock, the ledger and the control socket stay where they are; all else of the new file holds."""
        daemon = gpuguard.start()
        before = gpuguard.config.read_text()
        moved = {**gpuguard.node.config_paths(), "run": str(tmp_path / "elsewhere"), "cgroup": "/nonexistent"}
        gpuguard.write(guard={"settle": "50ms", "poll_interval": "100ms", "mode": "observe"}, paths=moved)
        daemon.signal(signal.SIGHUP)
        await_event(daemon, "needs_restart")
        assert events(daemon, "needs_restart")[0]["setting"] == "[paths]"
        scope = gpuguard.node.scope(hook_rules=[GPU0])
        await_event(daemon, "observed")
        assert not (tmp_path / "elsewhere").exists()
        gpuguard.config.write_text(before)
        shown = json.loads(gpuguard.command("status", "--json").stdout)
        assert [container["scope"] for container in shown["containers"]] == [scope.name]
        assert (shown["node"]["mode"], shown["node"]["daemon"]) == ("observe", "running")
        assert "[paths]" in shown["node"]["trouble"]

    def test_that_is_bad_is_told_by_the_commands(self, gpuguard: Gpuguard) -> None:
        """They work on with the daemon's settings, say what is wrong, and are quiet when the file is good again."""
        daemon = gpuguard.start()
        scope = protected(gpuguard, daemon, hook_rules=[GPU0])
        gpuguard.write(guard={"mode": "dance"})
        for number in (1, 2):  # before the daemon has read it, and after
            done = gpuguard.command("status")
            assert (done.returncode, done.stderr) == (0, "")
            assert "daemon running" in done.stdout
            assert 'mode = "dance"' in done.stdout
            checked = gpuguard.command("check")
            assert checked.returncode == 1
            assert checked.stdout.startswith("GPUGUARD WARNING - 1 protected (")
            daemon.signal(signal.SIGHUP)
            await_event(daemon, "config_rejected", number)
        done = gpuguard.command("repair", scope.name)
        assert done.returncode == 0
        assert "running daemon's settings" in done.stderr
        gpuguard.write()
        assert gpuguard.command("check").returncode == 1  # not taken yet
        daemon.signal(signal.SIGHUP)
        await_event(daemon, "config_reloaded")
        assert gpuguard.command("check").returncode == 0
        gpuguard.write(guard={"mode": "dance"})
        daemon.stop()
        assert gpuguard.command("status").returncode == 78

    @pytest.mark.parametrize("bad", ["[guard\n", '[guard]\nmode = "dance"\n', None])
    def test_that_is_bad_is_not_taken(self, gpuguard: Gpuguard, bad: Optional[str]) -> None:
        """A configuration that is no good is told, and the one before stays in force."""
        daemon = gpuguard.start()
        gpuguard.config.unlink() if bad is None else gpuguard.config.write_text(bad)
        daemon.signal(signal.SIGHUP)
        await_event(daemon, "config_rejected")
        scope = protected(gpuguard, daemon, hook_rules=[GPU0])
        await_sentinel(daemon, scope)
        scope.write_rules(EVERYTHING, verb="deny")
        await_event(daemon, "repaired")
        assert daemon.stop() == 0

    @pytest.mark.parametrize(
        ("text", "complaint"),
        [
            ("[guard\n", "not TOML"),
            ('[guard]\nmode = "dance"\n', "mode"),
            ("[surprise]\n", "surprise"),
            (None, "no such file"),
        ],
    )
    def test_that_is_bad_ends_a_start_with_78(self, gpuguard: Gpuguard, text: Optional[str], complaint: str) -> None:
        """A daemon that cannot read its configuration says why and ends with 78."""
        gpuguard.config.unlink() if text is None else gpuguard.config.write_text(text)
        daemon = gpuguard.spawn()
        assert daemon.wait(PATIENCE) == 78
        assert complaint in daemon.output()

    def test_of_a_node_whose_programs_cannot_be_read_ends_with_77(self, gpuguard: Gpuguard, tmp_path: Path) -> None:
        """A node on cgroup v2 that bpf(2) tells nothing about is no reason to restart again and again."""
        (tmp_path / "cgroup.controllers").touch()
        gpuguard.write(paths={**gpuguard.node.config_paths(), "cgroup": str(tmp_path)})
        daemon = gpuguard.spawn()
        assert daemon.wait(PATIENCE) == 77
        assert "cannot read its device programs" in daemon.output()

    def test_without_privileges_ends_with_77(self, gpuguard: Gpuguard, tmp_path: Path) -> None:
        """Without the right to write to its run directory it says so and ends with 77."""
        run = tmp_path / "run"
        run.mkdir(mode=0o500)
        gpuguard.write(paths={**gpuguard.node.config_paths(), "run": str(run)})
        argv = [sys.executable, "-m", "gpuguard", "run", "--config", str(gpuguard.config)]
        if os.geteuid() == 0:  # root without its right to pass over permissions
            argv = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override", "--", *argv]
        daemon = gpuguard.node.daemon(argv)
        assert daemon.wait(PATIENCE) == 77
        assert f"may not write to {run}" in daemon.output()

    def test_an_endpoint_that_cannot_be_had_does_not_end_it(self, gpuguard: Gpuguard) -> None:
        """With its metrics address in use the containers are guarded all the same."""
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            gpuguard.write(metrics={"listen": f"127.0.0.1:{taken.getsockname()[1]}"})
            daemon = gpuguard.start()
            daemon.await_output("no metrics endpoint", PATIENCE)
            protected(gpuguard, daemon, hook_rules=[GPU0])


class TestCompany:
    """Others on the node: another daemon, commands, systemd, Prometheus, strangers."""

    def test_a_second_daemon_is_refused(self, gpuguard: Gpuguard) -> None:
        """While one guards another one does not start, and the first one does not notice."""
        daemon = gpuguard.start()
        argv = [sys.executable, "-c", IMPATIENT, "run", "--config", str(gpuguard.config)]
        second = gpuguard.node.daemon(argv)
        assert second.wait(PATIENCE) == 1
        assert "another gpuguard is at work on this node" in second.output()
        protected(gpuguard, daemon, hook_rules=[GPU0])
        assert daemon.stop() == 0

    def test_commands_ask_it(self, gpuguard: Gpuguard) -> None:
        """Repair and release are done by the daemon; status sees that it runs."""
        daemon = gpuguard.start()
        scope = protected(gpuguard, daemon, hook_rules=[GPU0, CTL])
        assert gpuguard.states() == ["protected"]
        assert gpuguard.command("repair").returncode == 0
        assert gpuguard.command("release", scope.name, "c 195:255").returncode == 0
        await_event(daemon, "released")
        done = gpuguard.command("release", "nobody")
        assert (done.returncode, "no GPU container" in done.stderr) == (4, True)
        await_sentinel(daemon, scope)
        scope.write_rules(EVERYTHING, verb="deny")
        await_event(daemon, "repaired")
        assert (GPU0 in scope.rules().text(), CTL in scope.rules().text()) == (True, False)

    def test_its_control_socket_is_its_own(self, gpuguard: Gpuguard) -> None:
        """Nobody else may connect; nonsense, an endless line and silence harm nobody, and do not hinder its end."""
        daemon = gpuguard.start()
        path = gpuguard.node.path("/run/gpuguard/control.sock")
        assert path.stat().st_mode & 0o777 == 0o600
        with connected(path) as garbage, connected(path) as endless, connected(path), contextlib.ExitStack() as stack:
            garbage.sendall(b"\xff\0garbage\n")
            assert b'"error"' in garbage.recv(4096)
            with contextlib.suppress(ConnectionError):
                endless.sendall(b"a" * (3 << 20))
            polite = stack.enter_context(connected(path))
            polite.sendall(b'{"verb": "repair", "names": []}\n')
            assert json.loads(polite.recv(65536)) == {"report": {"dry_run": False, "repairs": []}}
            assert daemon.stop() == 0
        assert not path.exists()
        assert "Traceback" not in daemon.output()

    def test_prometheus_is_served(self, gpuguard: Gpuguard) -> None:
        """The endpoint has the containers' states and the health, and the textfile the same numbers."""
        textfile = gpuguard.node.path("/gpuguard.prom")
        gpuguard.write(metrics={"listen": f"unix:{gpuguard.metrics}", "textfile": str(textfile)})
        daemon = gpuguard.start()
        protected(gpuguard, daemon, hook_rules=[GPU0])
        lines = 'gpuguard_containers{state="protected"} 1.0', 'gpuguard_source_up{source="signals"} 1.0'
        for line in (*lines, 'systemd="252"'):
            until(lambda line=line: line in scrape(gpuguard.metrics, "/metrics"), PATIENCE, line)  # type: ignore[misc]
        assert scrape(gpuguard.metrics, "/healthz").endswith("ok\n")
        until(textfile.exists, PATIENCE, "the textfile")
        until(lambda: "gpuguard_containers" in textfile.read_text(), PATIENCE, "the containers in the textfile")

    def test_systemd_is_told(self, gpuguard: Gpuguard) -> None:
        """READY, the watchdog, the status line, a reload with its end, and STOPPING go to the notify socket."""
        path = gpuguard.node.path("/notify.sock")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.bind(str(path))
            notify.settimeout(PATIENCE)
            heard: list[str] = []

            def hears(word: str) -> None:
                while not any(message.startswith(word) for message in heard):
                    heard.append(notify.recv(4096).decode())
                heard.clear()

            daemon = gpuguard.start(env={"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "400000"})
            for word in ("READY=1", "WATCHDOG=1", "STATUS=GPU containers: none", "WATCHDOG=1"):
                hears(word)
            daemon.signal(signal.SIGHUP)
            for word in ("RELOADING=1", "READY=1"):
                hears(word)
            gpuguard.write(guard={"mode": "dance"})
            daemon.signal(signal.SIGHUP)
            for word in ("RELOADING=1", "STATUS=GPU containers: none; configuration not taken: ", "READY=1"):
                hears(word)
            daemon.signal(signal.SIGTERM)
            hears("STOPPING=1")
            assert daemon.wait(PATIENCE) == 0
